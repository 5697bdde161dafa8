"""The base class of all rankers: a score, and either a loss (learns by gradient) or rounds over global sums."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

import torchrank
from torchrank.data.batch import Batch, unlabelled
from torchrank.data.datamodule import RankingDataModule
from torchrank.data.rows import ALONE, Share, check_finite, parts_of, warn_of_lost_digits
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows, as_rows
from torchrank.data.state import clear_derived, take_sizes
from torchrank.data.training import TrainingLists
from torchrank.data.transforms import Auto, Identity, Transform, make_transform, transform_batch
from torchrank.errors import ConvergenceWarning, DataError, DataWarning, check_integer, check_numbers
from torchrank.functional.arrays import Array, columns_of, offsets_of, to_tensor
from torchrank.functional.ragged import sort_within
from torchrank.rankers.core.checkpoint_content import check_extra_state, check_state, named
from torchrank.rankers.core.checkpoint_files import write_whole_checkpoints
from torchrank.rankers.core.checkpoints import (
    FORMAT,
    check_for,
    check_format,
    check_plain,
    check_same_data,
    check_same_ranker,
    save,
)
from torchrank.rankers.core.evaluation import RankingEvaluation
from torchrank.rankers.core.fitting import fit, mean_over_lists
from torchrank.rankers.core.optimizers import Optimization
from torchrank.rankers.core.own import OPTIONS, loading
from torchrank.rankers.core.random_state import random_state, restore
from torchrank.rankers.core.restoring import name_the_file
from torchrank.rankers.core.rounds import Certificate, Round, RoundOptimizer
from torchrank.rankers.core.stopping import SharedStop

TransformOption = str | dict[str, Any] | list[Any] | None  # see `make_transform`
Prepared = Callable[[RankingSet, Transform], TrainingLists]
STAGE_SETS = {"fit": "train", "validate": "val", "test": "test", "predict": "test"}
KINDS = {
    "sparse": "sparse rows (set data.sparse=false to make them dense)",
    "corpus": "a corpus shared by the lists",
    "queries": "query vectors: it scores documents without looking at the query",
}


class Ranker(LightningModule):
    """Scores whole lists, owns its feature transform, and is fitted, measured, saved and loaded in one way.

    A subclass implements `score`, and either `loss` (it learns by gradient) or `round` (it learns by rounds: one round
    is one epoch and one optimizer step). What it learns from comes as an argument, `lists`; what has to live as long as
    a fit, and no longer, lies in `self.kept`.

    Args:
        num_features: number of columns of the rows.
        transform: feature transform, see `make_transform`.
        rounds: maximum number of rounds; None: the ranker learns by gradient.

    Attributes:
        takes: the kinds of data beyond dense rows that it accepts, of "sparse", "corpus" and "queries".
        certified: the fit ends by its own certificate: no early stopping, the last state counts.
        is_path: every round is a whole fit with other settings: each is validated, and the best counts.
        ranks_corpus: whether `corpus_ranks` ranks documents among all rows of a corpus, without a score for each.
        corpus_entries: entries that it takes at least in a batch over a whole corpus, where every batch costs a pass
            over the corpus and only scores are that long.
        rounds: most rounds; None: it learns by gradient.
        weighted: whether it learns with the weights of the entries; otherwise a warning says that it does not.
        chosen_by: measures by which `choose` decides among the candidates of `validation_scores`.
        kept: fit-scoped state, emptied when a fit begins and ends; `kept.lists` are the lists of the fit.
        optimization: of a ranker that learns by gradient.

    Example:
        >>> class Sum(Ranker):
        ...     def score(self, batch):
        ...         return batch.at_entries(batch.x.sum(1))
        ...     def round(self, lists, number):
        ...         return Round(done=True)
        >>> x, offsets = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> Sum(2, transform="standard", rounds=1).fit(lists).rank(x, offsets)
        tensor([1, 2, 0])
    """

    takes: frozenset[str] = frozenset()
    certified = False
    is_path = False
    weighted = False
    ranks_corpus = False
    corpus_entries = 0
    rounds: int | None = None
    chosen_by: tuple[str, ...] = ()
    optimization = Optimization()
    converged: Tensor

    def __init__(self, num_features: int, transform: TransformOption = None, rounds: int | None = None):
        """`rounds` is the limit of a ranker that learns by rounds; None: it learns by gradient."""
        super().__init__()
        check_integer(">= 1", num_features=num_features)
        self.save_hyperparameters()
        check_plain(dict(self.hparams), "hyper-parameters")
        check_numbers(type(self), self.hparams)
        self.num_features = num_features
        self.transform = make_transform(transform, num_features)
        self.register_buffer("converged", torch.tensor(False))
        self.register_load_state_dict_pre_hook(_make_room)
        self.certificate: Certificate | None = None
        self.findings: dict[str, Any] = {}  # what else a fit has to say, plain values
        self.by_query: bool | None = None  # whether the lists of the fit have query vectors
        self.outline: dict[str, int] = {}  # of the training lists
        self.feature_names: tuple[str, ...] | None = None  # of the training lists, if they have names
        self.own: dict[str, Any] = {}  # options that were given as objects; hyper-parameters hold their names
        self.kept = SimpleNamespace()
        self._drawn: list[dict[str, Any]] | None = None  # random states of the checkpoint that is resumed
        if rounds is not None:
            self.use_rounds(rounds)

    def use_rounds(self, rounds: int) -> None:
        """Learn by at most so many rounds, not by gradient."""
        check_integer(">= 1", rounds=rounds)
        self.rounds, self.automatic_optimization = rounds, False
        self.step_token = nn.Parameter(torch.empty(0))  # DDP refuses a module without a trainable parameter

    @property
    def by_rounds(self) -> bool:
        """Whether it learns by rounds, not by gradient."""
        return self.rounds is not None

    # ---- what a ranker implements -------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        """Scores (N,) of the entries of a batch whose rows are already transformed. Never looks at `batch.labels`."""
        raise NotImplementedError(f"{type(self).__name__} has to define score(batch)")

    def loss(self, batch: Batch) -> Tensor:
        """Loss (Q,) of every list of the batch: what a ranker minimises that learns by gradient."""
        raise NotImplementedError(f"{type(self).__name__} has to define loss(batch), or round(lists, number)")

    def round(self, lists: TrainingLists, number: int) -> Round:
        """One round, the `number`-th from 0: computes on copies and writes parameters as its last act, so that an
        interrupt loses one round only."""
        raise NotImplementedError(f"{type(self).__name__} has to define round(lists, number), or loss(batch)")

    def start(self, lists: TrainingLists) -> None:
        """Once at the start of a fresh fit, not when it is resumed: parameters take their sizes and first values."""

    def open(self, lists: TrainingLists) -> None:
        """Before the first round, fresh or resumed: fills `self.kept`."""

    def close(self, limit: str) -> None:
        """After the last round; `limit` names the option that ended a fit which has not converged."""
        if self.certificate is not None and not self.certificate.proved and not self.converged:
            name = type(self).__name__
            warn(f"{name} stopped before its certificate: {self.certificate}. Raise {limit}.", ConvergenceWarning)

    def corpus_ranks(self, batch: Batch) -> Tensor:
        """The rank (N,) from 1 of each entry among all rows of the corpus of its batch."""
        raise NotImplementedError(f"{type(self).__name__} has to define corpus_ranks(batch)")

    def validation_scores(self, batch: Batch) -> Tensor:
        """Scores (N,) of validation lists without labels; or (candidates, N), of which `choose` takes one."""
        return self.score(batch)

    def choose(self, measured: list[dict[str, Any]]) -> int:
        """Which of the candidates of `validation_scores` it shall be, by what each of them measured."""
        raise NotImplementedError(f"{type(self).__name__} has to define choose(measured)")

    def check_validation(self, there: bool) -> None:
        """Refuse a fit without validation lists where it needs them."""

    def density(self) -> float | None:
        """Share of non-zero weights, for rankers that make them sparse."""
        return None

    def entry_bytes(self, width: int) -> int:
        """Memory that an entry with so many features takes in a round or when it is scored: on a device, batches are as
        large as fits. 0: unknown, so that they have `batch_documents`."""
        return 32 * width + 512  # copies of its row in float32 and float64, and numbers beside it

    def baseline(self) -> Ranker | None:
        """The ranker that it has to beat to be of use, ready to score; a run says what was gained over it."""
        return None

    @property
    def has_groups(self) -> bool:
        """Whether it ranks different groups of queries by different models."""
        return False

    def groups_of(self, batch: Batch) -> Tensor:
        """The group (Q,) of each list of a batch whose rows are already transformed; -1: none."""
        raise NotImplementedError(f"{type(self).__name__} has no groups of queries")

    @property
    def num_topics(self) -> int | None:
        """How many lists have a model of their own; None: all share one."""
        return None

    # ---- scoring ------------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Array,
        offsets: Array = None,
        *,
        group: Array = None,
        qid: Array = None,
        index: Array = None,
        queries: Array = None,
        query: Array = None,
    ) -> Tensor:
        """Score raw rows. Give whole lists: a score may depend on the other documents of its list.

        Args:
            x: (n, D) features, one row per entry; or the rows of a corpus that the lists share. A tensor, `SparseRows`,
                a numpy array, a data frame of pandas or polars, or a matrix of scipy.sparse.
            offsets: (Q + 1,) where each list begins and ends.
            group: (Q,) number of entries of each list, in place of offsets.
            qid: (N,) query id of each entry, in place of offsets, with the rows of a query together.
            index: (N,) the corpus row of each entry, where the lists share a corpus.
            queries: (Q, D) query vectors, for rankers that learned distances from them.
            query: (Q,) the topic of each list, for rankers with a model for each topic.

        Returns:
            Scores (N,), higher is more relevant.
        """
        return self.score(self.inputs(x, offsets, group=group, qid=qid, index=index, queries=queries, query=query))

    def inputs(self, x: Array, offsets: Array = None, *, group: Array = None, qid: Array = None, **given: Any) -> Batch:
        """Raw lists, and what else `forward` takes, as the batch without labels for `score`: checked, transformed."""
        x, offsets, given = self._tensors(x, offsets, group, qid, given)
        has_queries = given.get("queries") is not None
        self._check_rows(x, given.get("index") is not None, has_queries)
        self._check_vectors(has_queries)
        batch = unlabelled(x, offsets, **given)
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            check_finite(x, 0)
            for start, part in parts_of(batch.queries):
                check_finite(part, start, "query")
        if self.num_topics is not None and ((batch.query < 0) | (batch.query >= self.num_topics)).any():
            found, name = f"{int(batch.query.min())}..{int(batch.query.max())}", type(self).__name__
            raise ValueError(f"query is {found}, but {name} has models of {self.num_topics} topics, counted from 0")
        dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
        batch = transform_batch(self.transform, batch)
        vectors = None if batch.queries is None else batch.queries.to(dtype)
        return batch._replace(x=batch.x.to(dtype=dtype), queries=vectors)

    def rank(self, x: Array, offsets: Array = None, *, group: Array = None, qid: Array = None, **given: Any) -> Tensor:
        """Rank raw rows; the arguments are those of a call.

        Returns:
            Row numbers (N,): each list's block holds its rows, best first (ties keep their order).
        """
        x, offsets, given = self._tensors(x, offsets, group, qid, given)
        order = sort_within(self(x, offsets, **given), offsets)
        return order if given.get("index") is None else given["index"][order]

    def _tensors(self, x: Array, offsets: Array, group: Array, qid: Array, given: dict[str, Any]) -> tuple[Any, ...]:
        """Rows, offsets and what else a call takes, with arrays as tensors on the device of the ranker."""
        self.check_names(columns_of(x))
        rows = as_rows(x)
        rows = rows if rows is x else rows.to(device=self.device)
        given = {name: each if each is None or isinstance(each, Tensor) else to_tensor(each, name).to(rows.device)
                 for name, each in given.items()}  # fmt: skip
        if not isinstance(offsets, Tensor) or group is not None or qid is not None:
            entries = rows if given.get("index") is None else given["index"]
            offsets = offsets_of(len(entries), offsets, group, qid, what="x").to(rows.device)
        return rows, offsets, given

    def check_names(self, names: tuple[str, ...] | None) -> None:
        """Refuse features with other names than those of the fit, where both are known."""
        if names is None or self.feature_names is None or names == self.feature_names:
            return
        for place, (found, known) in enumerate(zip_longest(names, self.feature_names)):
            if found != known:
                there = "there is none" if found is None else f"it is {found!r}"
                fitted = "had no such feature" if known is None else f"was fitted with {known!r} there"
                raise DataError(
                    f"feature {place} (counted from 0): {there}, but {type(self).__name__} {fitted}. Give the features "
                    "of ranker.feature_names in that order."
                )

    def _check_rows(self, x: Tensor | SparseRows, has_corpus: bool, has_queries: bool) -> None:
        name = type(self).__name__
        if x.shape[-1] != self.num_features:
            raise DataError(
                f"{name} was made for {self.num_features} features, but these rows have {x.shape[-1]}. "
                "Read the data with data.num_features set to the training set's number."
            )
        found = {"sparse": isinstance(x, SparseRows), "corpus": has_corpus, "queries": has_queries}
        for kind, there in found.items():
            if there and kind not in self.takes:
                raise DataError(f"{name} does not take {KINDS[kind]}.")

    def _check_vectors(self, has_queries: bool) -> None:
        if self.by_query not in (None, has_queries):
            told = "with query vectors, but these lists have none" if self.by_query else "without query vectors"
            raise DataError(f"{type(self).__name__} was fitted {told}")

    def export(self, path: str | PathLike[str], to: str | None = None) -> Path:
        """Write the score of one list as ONNX graph, torch program or JSON: see `torchrank.export_ranker`.

        Args:
            path: of the file, `model.onnx`, `model.pt2` or `model.json`.
            to: onnx, pt2 or json, where the suffix of the path does not say it.

        Returns:
            The path.
        """
        written: Path = torchrank.find_export("export_ranker")(self, path, to)
        return written

    # ---- a fit without Lightning --------------------------------------------------------------------------------

    def fit(
        self,
        train: RankingSet,
        val: RankingSet | None = None,
        *,
        epochs: int | None = None,
        batch_documents: int = 20_000,
        seed: int = 0,
    ) -> Self:
        """Fit on sets in memory, in this process, without a Trainer, files or checkpoints. Starts over.

        Rounds give the same weights as through a Trainer. With validation lists the state with the best NDCG@10 is
        kept, and a fit that is not certified stops when there was none better for 20 epochs.

        Args:
            train: the lists to learn from.
            val: the lists to choose the best round or epoch by.
            epochs: at most so many rounds or epochs; by default the ranker's `rounds`, or 100 epochs.
            batch_documents: documents of an optimizer step.
            seed: draws first weights, dropout and the order of the batches.

        Returns:
            The ranker itself, in evaluation mode.

        Example:
            >>> from torchrank import ListNet
            >>> from torchrank.data import synthetic_splits
            >>> sets = synthetic_splits(num_queries=30, num_features=10)
            >>> ranker = ListNet(num_features=10).fit(sets["train"], sets["val"])
            >>> ranker(sets["test"].x, sets["test"].offsets).shape == sets["test"].labels.shape
            True
        """
        fit(self, train, val, epochs=epochs, batch_documents=batch_documents, seed=seed)
        return self.eval()

    # ---- the life of a fit: called by `fit` and by Lightning's hooks --------------------------------------------

    def check_set(self, lists: RankingSet) -> None:
        """Refuse lists that the ranker cannot take."""
        self.check_names(lists.feature_names)
        self._check_rows(lists.x, lists.is_shared, lists.has_queries)
        lists.check_rows()

    def learn_transform(self, train: RankingSet, share: Share = ALONE) -> None:
        """The first act of a fresh fit, of which every process reads its share."""
        if isinstance(self.transform, Identity):
            warn_of_lost_digits(train.x)
        if not train.pairs.any():
            warn("no training list has documents with different labels: there is no order to learn", DataWarning)
        if train.weights is not None and not self.weighted:
            warn(f"{type(self).__name__} does not learn with weights: those of the data have no effect", DataWarning)
        if isinstance(self.transform, Auto):
            self.transform.vectors = train.has_queries
        offsets = None if train.is_shared else train.offsets
        self.transform.fit(train.x, offsets, device=self.device, share=share)
        self.by_query, self.certificate, self.findings = train.has_queries, None, self._told()
        self.feature_names = train.feature_names
        self.converged.fill_(False)

    def settle(self, train: RankingSet, val: RankingSet | None, prepared: Prepared) -> None:
        """Before the rows of a fresh fit are transformed: choose what must be known by then, such as the transform.

        `prepared(lists, transform)` are lists through a fitted transform, divided among the processes.
        """

    def _told(self) -> dict[str, Any]:
        """What every finding begins with: the transform, where the rows have decided it."""
        return {"transform": self.transform.told} if isinstance(self.transform, Auto) else {}

    @torch.no_grad()
    def begin(self, lists: TrainingLists) -> None:
        """The first act on the lists of a fresh fit."""
        self.kept = SimpleNamespace(lists=lists)
        self.start(lists)

    @torch.no_grad()
    def resume(self, lists: TrainingLists) -> None:
        """Before the next round, fresh or resumed."""
        self.kept.lists = lists
        self.open(lists)

    @torch.no_grad()
    def take_round(self, number: int) -> Round:
        """One round on the lists of the fit; what it found is written down."""
        with torch.autocast(self.device.type, enabled=False):
            found = self.round(self.kept.lists, number)
        self.converged.fill_(found.done)
        self.certificate, self.findings = found.certificate, self._told() | dict(found.findings)
        return found

    def release(self) -> None:
        """Keep nothing but what was learned."""
        self.kept = SimpleNamespace()
        clear_derived(self)

    # ---- Lightning's hooks --------------------------------------------------------------------------------------

    @property
    def _data(self) -> RankingDataModule:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, RankingDataModule):
            raise DataError(
                "a ranker trains on lists: call trainer.fit(ranker, datamodule=RankingDataModule.from_sets(train=..., "
                "val=...)) instead of passing loaders."
            )
        return data

    @property
    def _resumed(self) -> bool:
        return self.trainer.ckpt_path is not None

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """What DDP reads: buffers that it need not send before every step. All processes have the same transform."""
        return [f"transform.{name}" for name, _ in self.transform.named_buffers()]

    def configure_callbacks(self) -> list[Callback]:
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        measured = any(isinstance(each, RankingEvaluation) for each in callbacks)
        stop = next((each for each in callbacks if isinstance(each, SharedStop)), SharedStop())
        own: list[Callback] = [stop, Leaving()]
        return own if measured else [*own, RankingEvaluation()]

    def setup(self, stage: str) -> None:
        self.release()  # a fit that broke off may have left something
        write_whole_checkpoints(self.trainer)
        name_the_file(self.trainer)
        data = self._data
        if STAGE_SETS[stage] not in data.sets:
            wanted, there = STAGE_SETS[stage], ", ".join(data.sets)
            raise DataError(f"this needs {wanted} lists, but the data has {there} only: add {wanted}=...")
        if stage == "fit":
            self.feature_names = None  # of an earlier fit; a state that is resumed brings its own
        for lists in data.sets.values():
            lists.check_rows(data.share)
        self.check_set(data.sets[STAGE_SETS[stage]])
        if stage == "fit":
            self._check_trainer()
            self.check_validation("val" in data.sets)
        if stage == "fit" and not self._resumed:  # all sizes are final before DDP looks at the parameters
            self.trainer.precision_plugin.convert_module(self.to(self.trainer.strategy.root_device))
            self.learn_transform(data.sets["train"], data.share)
            self.settle(data.sets["train"], data.sets.get("val"), data.prepared)
            self.begin(data.training_lists())

    def _check_trainer(self) -> None:
        """Statistics and solves need 32 bits at least; rounds have no gradient that could be scaled (16-mixed)."""
        name, precision = type(self).__name__, str(self.trainer.precision)
        if precision.endswith("-true") and not precision.startswith(("32", "64")):
            raise ValueError(f"trainer.precision={precision} is below 32 bits: use 32-true or bf16-mixed for {name}.")
        if self.by_rounds and precision == "16-mixed":
            raise ValueError(f"{name} fits by rounds, without gradients to scale: use trainer.precision=32-true.")
        if self.by_rounds and (self.trainer.min_epochs or 0) > 1:
            least = self.trainer.min_epochs
            raise ValueError(f"{name} decides when to stop, so min_epochs must be 1 or unset, got {least}.")

    def on_fit_start(self) -> None:
        outline = self._data.sets["train"].outline(self._data.share)
        if self._resumed:
            check_same_data(self.outline or outline, outline)
        self.outline = outline
        self.resume(self._data.training_lists())
        self.kept.interval = self.trainer.check_val_every_n_epoch
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        if self.certified and not any(getattr(each, "every_round", False) for each in callbacks):
            self.trainer.check_val_every_n_epoch = sys.maxsize  # validated at its end

    def on_train_start(self) -> None:
        if self._resumed and self._drawn:  # last, since everything before may have drawn something
            restore(self._drawn)
        if self._resumed and (self.converged or _stopped_early(self.trainer)):
            self.trainer.should_stop = True

    def on_fit_end(self) -> None:
        epochs, rounds = self.trainer.max_epochs, self.rounds or 0
        self.close(
            f"trainer.max_epochs (now {epochs})" if epochs is not None and 0 <= epochs < rounds else self.limit()
        )
        self.leave()

    def leave(self) -> None:
        """After a fit, also one that broke off: the trainer is as it was, and nothing is kept but what was learned."""
        self.trainer.check_val_every_n_epoch = getattr(self.kept, "interval", self.trainer.check_val_every_n_epoch)
        self.release()

    def limit(self) -> str:
        """The option that limits the rounds, and its value."""
        return "rounds" if self.is_path else f"rounds (now {self.rounds})"  # those of a path are its fits

    def training_step(self, batch: Batch, batch_index: int) -> Tensor | None:
        if self.by_rounds:
            self._round_step()
            return None
        loss = mean_over_lists(self.loss(batch))
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def _round_step(self) -> None:
        """Run one round through the optimizer and stop the trainer after the last one. That one is always validated,
        and all are on a path."""
        trainer, rounds = self.trainer, self.rounds or 0
        if not self.converged and trainer.current_epoch < rounds:
            self.optimizers().step()  # type: ignore[union-attr]
        if self.converged or trainer.current_epoch + 1 >= rounds:
            trainer.should_stop = True
        limits = (trainer.current_epoch + 1 == trainer.max_epochs, trainer.global_step == trainer.max_steps)
        if self.is_path or trainer.should_stop or any(limits):
            trainer.check_val_every_n_epoch = 1

    def configure_optimizers(self) -> Any:
        return RoundOptimizer(self) if self.by_rounds else self.optimization.make(self.parameters())

    def validation_step(self, batch: Batch, batch_index: int = 0) -> Tensor:
        """Scores, or ranks, for `RankingEvaluation`: the labels are taken away before the ranker sees the batch."""
        early = self._trainer is not None and self._trainer.sanity_checking  # before the first round
        if early and self.by_rounds and not batch.ranked:
            return torch.zeros_like(batch.labels, dtype=torch.float32)
        return self._scored(batch, self.validation_scores)

    def test_step(self, batch: Batch, batch_index: int = 0) -> Tensor:
        return self._scored(batch, self.score)

    def predict_step(self, batch: Batch, batch_index: int = 0) -> Tensor:
        return self._scored(batch, self.score)

    def _scored(self, batch: Batch, score: Callable[[Batch], Tensor]) -> Tensor:
        self._check_vectors(batch.queries is not None)
        with self.scoring():
            return (self.corpus_ranks if batch.ranked else score)(without_labels(batch))

    def scoring(self) -> AbstractContextManager[Any]:
        """What is learned by rounds, in full precision, is scored in it too: mixed precisions are for gradients."""
        return torch.autocast(self.device.type, enabled=False) if self.by_rounds else nullcontext()

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """What belongs to the state beside tensors: plain values."""
        certificate = None if self.certificate is None else self.certificate._asdict()
        return {
            "certificate": certificate and {**certificate, "bounds": dict(certificate["bounds"])},
            "findings": self.findings,
            "by_query": self.by_query,
            "outline": self.outline,
            "feature_names": self.feature_names and list(self.feature_names),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        check_extra_state(state, self.num_features)
        self.certificate = None if state["certificate"] is None else Certificate(**state["certificate"])
        self.findings, self.by_query, self.outline = state["findings"], state["by_query"], state["outline"]
        names = state.get("feature_names")  # checkpoints of earlier versions have none
        self.feature_names = None if names is None else tuple(names)

    def make_room(self, state: dict[str, Any], prefix: str) -> None:
        """Before a state is loaded: parameters and buffers take its sizes."""
        check_state(self, state, prefix)
        take_sizes(self, state, prefix)
        self.kept = SimpleNamespace()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the fitted ranker to a checkpoint, as a Trainer does; `torchrank.load` reads it.

        Args:
            path: the file, which is replaced as a whole if it exists.

        Returns:
            The path.
        """
        return save(self, path)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, *, weights_only: bool = True, **kwargs: Any
    ) -> Self:
        """Load a ranker of this class; `scorer` and `loss` as in `torchrank.load`. The file cannot make it import."""
        own = {name: kwargs.pop(name) for name in OPTIONS if not isinstance(kwargs.get(name, ""), str)}
        own |= {name: kwargs.pop(name) for name in OPTIONS if "." in kwargs.get(name, "")}
        kwargs["_instantiator"] = None  # which Lightning would take from the file
        with named(checkpoint_path), loading(**own):
            if cls.__name__ in torchrank.RANKERS and not own:
                check_for(cls, checkpoint_path)
            return super().load_from_checkpoint(checkpoint_path, map_location, weights_only=weights_only, **kwargs)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ranker"], checkpoint["format"] = type(self).__name__, FORMAT
        checkpoint["random_state"] = random_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_format(checkpoint)
        check_same_ranker(self, checkpoint)
        self._drawn = checkpoint.get("random_state")


class Leaving(Callback):
    """Lets a ranker clean up after a fit that broke off, for which a module itself has no hook."""

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        module.leave()  # type: ignore[operator]


def _stopped_early(trainer: Trainer) -> bool:
    """Whether the fit that is resumed had ended by early stopping."""
    return any(each.wait_count >= each.patience for each in trainer.early_stopping_callbacks)


def _make_room(ranker: Ranker, state: dict[str, Any], prefix: str, *_: Any) -> None:
    ranker.make_room(state, prefix)


def warn(message: str, category: type[Warning]) -> None:
    """A warning of the first process alone."""
    rank_zero_warn(message, category=category)


def without_labels(batch: Batch) -> Batch:
    """The batch without labels, and without weights and positions, which may tell of them."""
    return batch._replace(labels=torch.zeros_like(batch.labels), num_pairs=0, weights=None, positions=None)
