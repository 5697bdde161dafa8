"""The two shapes of a ranker: a gradient (`GradientRanker`) or rounds over global sums (`RoundRanker`)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn
from tqdm import tqdm

from torchrank.data.batch import Batch, unlabelled
from torchrank.data.datamodule import RankingDataModule, transform_batch
from torchrank.data.rows import check_finite, parts_of, warn_of_lost_digits
from torchrank.data.sparse import SparseRows
from torchrank.data.transforms import Identity, make_transform
from torchrank.functional.ragged import sort_within
from torchrank.rankers.core.checkpoints import check_plain, check_same_data, check_same_ranker
from torchrank.rankers.core.measured import MeasuredSplit
from torchrank.rankers.core.rounds import RoundOptimizer, round_step, start_rounds
from torchrank.rankers.core.sized import SizedState

STAGE_SETS = {"fit": "train", "validate": "val", "test": "test", "predict": "test"}
KINDS = {
    "sparse": "sparse rows (set data.sparse=false to make them dense)",
    "corpus": "a corpus shared by the lists",
    "queries": "query vectors: it scores documents without looking at the query",
}


class Ranker(SizedState):
    """Scores whole lists; owns its feature transform; is measured, saved and loaded the same way whatever it learns.

    `takes` names the kinds of data beyond dense rows of its own that a ranker accepts (the keys of `KINDS`).
    `certified` fits end by their own certificate: no early stopping, the last state is tested. Rounds of `is_path` are
    whole fits with other settings: each of them is validated, and the best is tested. `corpus_entries` is how many
    entries it takes at least when it scores or sums lists over a whole corpus: more than `batch_documents` where every
    batch costs a pass over the corpus, and only scores are that long.
    """

    takes: frozenset[str] = frozenset()
    certified = False
    is_path = False
    corpus_entries = 0
    by_rounds = False
    rounds: int | None = None
    converged: Tensor
    step_token: nn.Parameter

    def __init__(self, num_features: int, transform: str | dict | list | None = None):
        super().__init__()
        self.save_hyperparameters()
        check_plain(dict(self.hparams), "hyper-parameters")
        self.num_features = num_features
        self.transform = make_transform(transform, num_features)
        self.register_buffer("converged", torch.tensor(False))
        self.measured: dict[str, dict] = {}
        self.certificate: dict[str, float] = {}  # what a certified fit found, then what it has to be at most, then more
        self.findings: dict[str, Any] = {}  # what else a fit has to say, plain values, for results.json
        self.by_query: bool | None = None  # whether the lists of the fit have query vectors
        self._outline: dict[str, int] = {}  # of the training lists
        self._whole: tuple[Ranker, RankingDataModule] | None = None  # what it is a part of, and its lists: `join`

    # ---- what a ranker implements -------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        """Scores (N,) of the entries of a batch whose rows are already transformed. Never looks at `batch.labels`."""
        raise NotImplementedError(f"{type(self).__name__} has to define score(batch)")

    def prepare(self) -> None:
        """Once at fit start, not on resume; may call `total`."""

    def density(self) -> float | None:
        """Share of the weights that are not 0, for rankers that make them sparse."""
        return None

    def inputs_sized(self) -> None:
        """The transform was fitted: parameters that depend on `self.transform.num_outputs` take their size."""

    # ---- scoring ------------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor | SparseRows,
        offsets: Tensor,
        *,
        index: Tensor | None = None,
        queries: Tensor | None = None,
        query: Tensor | None = None,
    ) -> Tensor:
        """Scores (N,) of raw rows. Whole lists: a score may depend on the other documents of its list."""
        return self.score(self.inputs(x, offsets, index=index, queries=queries, query=query))

    @property
    def num_topics(self) -> int | None:
        """How many lists have a model of their own; None: all have one."""
        return None

    def inputs(self, x: Tensor | SparseRows, offsets: Tensor, **given: Tensor | None) -> Batch:
        """Raw lists, and what else `forward` takes, as the batch without labels for `score`: checked, transformed."""
        has_queries = given.get("queries") is not None
        self._check_rows(x, given.get("index") is not None, has_queries)
        self._check_vectors(has_queries)
        batch = unlabelled(x, offsets, **given)
        if self.num_topics is not None and ((batch.query < 0) | (batch.query >= self.num_topics)).any():
            found = f"{int(batch.query.min())}..{int(batch.query.max())}"
            raise ValueError(f"query is {found}: {type(self).__name__} has models of {self.num_topics} topics, from 0")
        dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
        batch = transform_batch(self.transform, batch)
        vectors = None if batch.queries is None else batch.queries.to(dtype)
        return batch._replace(x=batch.x.to(dtype=dtype), queries=vectors)

    def rank(self, x: Tensor | SparseRows, offsets: Tensor, *, index: Tensor | None = None, **given: Any) -> Tensor:
        """Row numbers (N,): each list's block holds its rows, best first (ties keep their order)."""
        order = sort_within(self(x, offsets, index=index, **given), offsets)
        return order if index is None else index[order]

    def _check_rows(self, x: Tensor | SparseRows, has_corpus: bool, has_queries: bool) -> None:
        if not isinstance(x, Tensor | SparseRows):
            raise ValueError(f"rows are a {type(x).__name__}: give a tensor (torch.from_numpy(x)), or SparseRows")
        if x.shape[-1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__} was made for {self.num_features} features, these rows have {x.shape[-1]}. "
                "Read the data with data.num_features set to the training set's number."
            )
        found = {"sparse": isinstance(x, SparseRows), "corpus": has_corpus, "queries": has_queries}
        for kind, there in found.items():
            if there and kind not in self.takes:
                raise ValueError(f"{type(self).__name__} does not take {KINDS[kind]}.")

    def _check_vectors(self, has_queries: bool) -> None:
        if self.by_query not in (None, has_queries):
            raise ValueError(f"{type(self).__name__} was fitted {'with' if self.by_query else 'without'} query vectors")

    # ---- data and global sums -----------------------------------------------------------------------------------

    @property
    def data(self) -> RankingDataModule:
        data = self._whole[1] if self._whole else self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, RankingDataModule):
            raise ValueError(
                "a ranker trains on lists: call trainer.fit(ranker, datamodule=RankingDataModule.from_sets(train=..., "
                "val=...)) instead of passing loaders."
            )
        return data

    def batches(self) -> Iterator[Batch]:
        """This process's training lists on `self.device`, transform applied; at least one batch, perhaps empty."""
        return self.data.training_shard(self.corpus_entries)

    def total(self, fn: Callable, into: tuple[Tensor, ...] | None = None) -> Any:
        """Sum of `fn(batch)` (a tensor or a tuple) over the training lists of all processes.

        With `into`, zeroed float64 tensors, `fn(batch, into)` adds in place. Every tensor is reduced by itself.
        """
        if isinstance(into, Tensor | list):
            raise TypeError("into is a tuple of tensors")
        sums: Any = into
        looked_at = self.global_rank == 0 and sys.stderr.isatty()
        hidden = {} if looked_at else {"disable": True}  # TQDM_DISABLE=1 hides it too, as for runs side by side
        for batch in tqdm(self.batches(), desc="sum over lists", delay=2, leave=False, **hidden):
            if into is not None:
                fn(batch, into)
            elif sums is None:
                sums = fn(batch)
            elif isinstance(sums, tuple):
                sums = tuple(a + b for a, b in zip(sums, fn(batch), strict=True))
            else:
                sums = sums + fn(batch)
        if not isinstance(sums, Tensor | tuple):
            raise TypeError(f"total sums a tensor or a tuple of tensors, not a {type(sums).__name__}")
        return tuple(self._reduce(t) for t in sums) if isinstance(sums, tuple) else self._reduce(sums)

    def sample_rows(self, count: int, seed: int = 0) -> Tensor:
        """At most `count` training rows (n, D) drawn by `seed`, transformed, in float64: the same on every process."""
        lists = self.data.sets["train"]
        chosen = torch.randperm(len(lists.x), generator=torch.Generator().manual_seed(seed))[:count].sort().values
        if lists.is_shared:
            corpus: Any = self.data.ready("train")
            return corpus.x[chosen.to(self.device)].double()
        chosen = chosen.to(self.device)

        def gather(batch: Batch, into: tuple[Tensor, ...]) -> None:
            start = int(lists.offsets[batch.query[0]]) if batch.num_lists else 0
            here = (chosen >= start) & (chosen < start + len(batch.labels))
            into[0][here] = batch.x[chosen[here] - start].double()  # type: ignore[union-attr]

        shape = (len(chosen), self.transform.num_outputs)
        return self.total(gather, into=(torch.zeros(shape, dtype=torch.float64, device=self.device),))[0]

    def _reduce(self, tensor: Tensor) -> Tensor:
        # gloo adds up the memory behind a view, not its entries
        return self.trainer.strategy.reduce(tensor.contiguous(), reduce_op="sum")

    # ---- as a part of another ranker ----------------------------------------------------------------------------

    def join(self, whole: "Ranker", data: RankingDataModule) -> None:
        """Be fitted as a part of another ranker, by its trainer and on the training lists of `data`."""
        self.trainer, self._whole = whole.trainer, (whole, data)
        self.setup("fit")
        self.on_fit_start()

    def leave(self) -> None:
        """The fit is over."""
        self.on_fit_end()
        self._whole = None

    def log(self, *arguments: Any, **options: Any) -> None:
        """A part has no log: Lightning keeps one for the whole."""
        if self._whole is None:
            super().log(*arguments, **options)

    # ---- the life of a fit --------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        data = self.data
        if STAGE_SETS[stage] not in data.sets:
            wanted, there = STAGE_SETS[stage], ", ".join(data.sets)
            raise ValueError(f"this needs {wanted} lists, and this data has {there} only: add {wanted}=...")
        lists = data.sets[STAGE_SETS[stage]]
        self._check_rows(lists.x, lists.is_shared, lists.has_queries)
        for given in data.sets.values():
            for start, part in parts_of(given.queries):
                check_finite(part, start, f"{given.name} query")
        if stage == "fit":
            self._check_trainer()
            if isinstance(self.transform, Identity):
                warn_of_lost_digits(lists.x)
            if self.trainer.ckpt_path is None:
                self.transform.fit(lists.x, None if lists.is_shared else lists.offsets)
                self.inputs_sized()
        data.attach(self.transform, self.device)
        splits = [split for split in ("val", "test") if split in data.sets]
        self.measuring: Any = nn.ModuleDict({split: MeasuredSplit(data, split) for split in splits})

    def _check_trainer(self) -> None:
        """Statistics and solves need 32 bits at least; rounds have no gradient that could be scaled (16-mixed)."""
        name, precision = type(self).__name__, str(self.trainer.precision)
        if precision.endswith("-true") and not precision.startswith(("32", "64")):
            raise ValueError(f"trainer.precision={precision} is below 32 bits: use 32-true or bf16-mixed for {name}.")
        if self.by_rounds and precision == "16-mixed":
            raise ValueError(f"{name} fits by rounds, without gradients to scale: use trainer.precision=32-true.")
        if self.by_rounds and (self.trainer.min_epochs or 0) > 1:
            raise ValueError(f"{name} ends by itself: min_epochs={self.trainer.min_epochs} is refused.")

    def on_fit_start(self) -> None:
        self._interval = self.trainer.check_val_every_n_epoch
        if self._whole is None:
            outline = self.data.sets["train"].outline()
            if self.trainer.ckpt_path is not None:
                check_same_data(self._outline or outline, outline)
            self._outline = outline
        if self.trainer.ckpt_path is None:
            self.converged.fill_(False)
            self.by_query = self.data.sets["train"].has_queries
            with torch.no_grad():
                self.prepare()

    def on_fit_end(self) -> None:
        if self.certificate and not self.converged and self._whole is None:
            found = ", ".join(f"{name} {value:.4g}" for name, value in self.certificate.items())
            rank_zero_warn(f"{type(self).__name__} stopped before its certificate ({found}): raise {self.limit()}.")
        self.trainer.check_val_every_n_epoch = self._interval  # `round_step` may have changed it

    def limit(self) -> str:
        """The option that ended a fit which did not converge, and its value."""
        epochs, rounds = self.trainer.max_epochs, self.rounds or 0
        if epochs is not None and 0 <= epochs < rounds:
            return f"trainer.max_epochs, now {epochs}"
        return "rounds" if self.is_path else f"rounds, now {rounds}"  # those of a path are its fits

    # ---- measuring ----------------------------------------------------------------------------------------------

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        self._measure("val", batch)

    def test_step(self, batch: Batch, batch_index: int) -> None:
        self._measure("test", batch)

    def predict_step(self, batch: Batch, batch_index: int) -> Tensor:
        self._check_vectors(batch.queries is not None)
        with self.scoring():
            return self.score(without_labels(batch))

    def on_validation_epoch_end(self) -> None:
        self._conclude("val")

    def on_test_epoch_end(self) -> None:
        self._conclude("test")

    def evaluation_scores(self, split: str, batch: Batch) -> Tensor:
        """Scores of a batch of `split`: the labels are taken away before the ranker sees it."""
        return self.score(without_labels(batch))

    def _measure(self, split: str, batch: Batch) -> None:
        self._check_vectors(batch.queries is not None)
        measuring = self.measuring[split]
        tiebreak = self.data.tiebreak(split, batch) if measuring.needs_ids else None
        with self.scoring():
            scores = self.evaluation_scores(split, batch)
        measuring.update(scores, batch, tiebreak)

    def scoring(self) -> AbstractContextManager:
        """What is learned by rounds, in full precision, is scored in it too: mixed precisions are for gradients."""
        return torch.autocast(self.device.type, enabled=False) if self.by_rounds else nullcontext()

    def _conclude(self, split: str) -> None:
        self._publish(split, self.measuring[split].conclude())

    def _publish(self, split: str, measured: dict[str, dict]) -> None:
        """Log the means; `val/ndcg@10` is the first convention, `val/letor/ndcg@10` another one."""
        self.measured[split] = measured
        for name, found in measured.items():
            prefix = split if name == self.data.conventions[0] else f"{split}/{name}"
            self.log_dict({f"{prefix}/{measure}": value for measure, value in found["measures"].items()})

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["ranker"] = type(self).__name__
        checkpoint["certificate"], checkpoint["findings"] = self.certificate, self.findings
        checkpoint["outline"], checkpoint["by_query"] = self._outline, self.by_query
        checkpoint["transform_sizes"] = self.transform.resized()

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        check_same_ranker(self, checkpoint)
        self.certificate, self.findings = checkpoint.get("certificate", {}), checkpoint.get("findings", {})
        self._outline, self.by_query = checkpoint.get("outline", {}), checkpoint.get("by_query")
        self.transform.allocate(checkpoint["transform_sizes"])
        super().on_load_checkpoint(checkpoint)


class GradientRanker(Ranker):
    """A ranker that learns by the gradient of `loss(batch)`, one value per list; `by_rounds` by its `round()`."""

    def __init__(self, num_features: int, transform: str | dict | list | None, lr: float, weight_decay: float):
        super().__init__(num_features, transform)
        self.lr, self.weight_decay = lr, weight_decay

    def loss(self, batch: Batch) -> Tensor:
        """Loss (Q,) of every list of the batch."""
        raise NotImplementedError(f"{type(self).__name__} has to define loss(batch)")

    def training_step(self, batch: Batch, batch_index: int) -> Tensor | None:
        """Sum over the lists of this process / lists of all processes * processes: what DDP averages is the mean."""
        if self.by_rounds:
            round_step(self)
            return None
        lists = self._reduce(torch.tensor(float(batch.num_lists), device=self.device)).clamp(min=1)
        loss = self.loss(batch).sum() / lists * self.trainer.world_size
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.by_rounds:
            return RoundOptimizer(self)
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)


class RoundRanker(Ranker):
    """A ranker that learns in rounds: one round = one epoch = one optimizer step.

    `round` computes on copies and writes parameters and state as its last act, so an interrupt loses one round only.
    """

    by_rounds = True

    def __init__(self, num_features: int, transform: str | dict | list | None, rounds: int):
        super().__init__(num_features, transform)
        if not isinstance(rounds, int) or rounds < 1:
            raise ValueError(f"rounds={rounds!r} has to be an integer, 1 at least")
        self.rounds = rounds
        start_rounds(self)

    def round(self) -> bool:
        """One round: writes parameters; True = converged."""
        raise NotImplementedError(f"{type(self).__name__} has to define round()")

    def training_step(self, token: Any, batch_index: int) -> None:
        round_step(self)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return RoundOptimizer(self)


def density_of(weight: Tensor) -> float:
    return int(weight.count_nonzero()) / max(weight.numel(), 1)


def without_labels(batch: Batch) -> Batch:
    return batch._replace(labels=torch.zeros_like(batch.labels), num_pairs=0)
