"""LocalRank: one model per cluster of query clouds (Banerjee, Dubey, Machchhar & Chakrabarti 2009)."""

from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.sets import RankingSet
from torchrank.functional.ragged import list_ids, per_entry
from torchrank.rankers.core.measured import MeasuredSplit
from torchrank.rankers.core.ranker import GradientRanker, without_labels
from torchrank.rankers.core.rounds import start_rounds
from torchrank.rankers.listnet import ListNet
from torchrank.rankers.localrank.clusters import QueryClusters
from torchrank.rankers.localrank.parts import LINEAR, Parts, lists_as_data, make_base, resident_lists, spread
from torchrank.solvers.clouds.shapes import DIRECTIONS
from torchrank.solvers.linear.many import join_lists, solve_many_linear


class LocalRank(GradientRanker):
    """Clusters the training lists by the shapes of their clouds of documents, whatever their labels, and gives every
    cluster a copy of the `base` ranker, trained on its lists alone. A list is ranked by the model of the cluster that
    its most similar training list is in: scores depend on all documents of a list, so rank whole lists only. A list
    without a shape (one document, or equal ones) is ranked by the global model, which is trained on all lists.

    `clusters`: one number, or several of which validation chooses by `choose_by`: the smallest that is not worse than
    the best by more than one standard error of the difference per query. 1, the global model, is always among them,
    because clustering often does not help. All are cuts of one dendrogram and share their models where clusters agree.

    `similarity`: of the first `components` principal directions (`ordered`, eq. 5, `squared`, `subspace`, `weighted`),
    as many as explain `variance` of the clouds with "auto"; or of their `mean`, `variance`, `skew`; or as Gaussians,
    `jeffreys` and `bhattacharyya`. `assignment="soft"` mixes the scores of all clusters by softmax(similarity of the
    nearest list in each / temperature). `assignment="shrink"` trains one linear model w_0 + d_c on all lists, with
    `stiffness` times the l2 of the base on the corrections d_c. Clusters of fewer than `min_lists` join others.
    `partition="random"` deals the lists at random into clusters of the same sizes: the placebo.

    The most similar list is searched for exactly. With `lsh={"bits": 12, "tables": 16, "rerank": 50}` it is the best of
    the 50 lists that share most buckets, which is for more training lists than there usually are.
    """

    models: Tensor  # (numbers of clusters, C) part that ranks the lists of each cluster
    done: Tensor  # (M,) rounds of each part
    chosen: Tensor  # () row of `clusters.labels` that ranks

    def __init__(
        self,
        num_features: int,
        base: str = "listnet",
        base_options: dict | None = None,
        clusters: int | list[int] = (1, 2, 3, 5, 8),  # type: ignore[assignment]
        choose_by: str = "ndcg@10",
        similarity: str = "ordered",
        components: int | str = "auto",
        variance: float = 0.8,
        assignment: str = "hard",
        temperature: float = 0.05,
        stiffness: float = 3.0,
        min_lists: int = 10,
        partition: str = "clouds",
        lsh: dict | None = None,
        rounds: int = 500,
        seed: int = 0,
        transform: str | dict | list | None = "query_minmax",
    ):
        super().__init__(num_features, transform, lr=0.0, weight_decay=0.0)
        self.several, self.choose_by = isinstance(clusters, list | tuple), choose_by
        self.numbers = sorted({1, *clusters}) if isinstance(clusters, list | tuple) else [clusters]
        self.clusters = QueryClusters(
            self.numbers,
            similarity=similarity,
            components=components,
            variance=variance,
            min_lists=min_lists,
            partition=partition,
            lsh=lsh,
            seed=seed,
        )
        self.assignment, self.temperature, self.stiffness = assignment, temperature, stiffness
        self.base, self.base_options, self.base_rounds = base, base_options or {}, rounds
        self._check(similarity)
        self.register_buffer("models", torch.zeros(0, 0, dtype=torch.int64))
        self.register_buffer("done", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("chosen", torch.zeros((), dtype=torch.int64))
        self.parts: Any = self._new_parts()
        self._take_shape(self.parts[0])
        self._kept: dict[int, Tensor] = {}  # nearest training lists of the validation batches of a fit

    def _check(self, similarity: str) -> None:
        if self.assignment not in ("hard", "soft", "shrink"):
            raise ValueError(f"unknown assignment={self.assignment!r}: choose one of hard, soft, shrink")
        if self.assignment == "shrink" and self.base not in LINEAR:
            raise ValueError(f"assignment=shrink corrects linear models, base={self.base}: use {', '.join(LINEAR)}")
        if self.assignment == "soft" and similarity not in DIRECTIONS:
            raise ValueError(f"assignment=soft needs a similarity of 0 to 1: {', '.join(DIRECTIONS)}")
        if not (self.temperature > 0 and self.stiffness > 0):  # nan is not
            raise ValueError(f"temperature={self.temperature} and stiffness={self.stiffness} must be positive")
        if "error" in self.choose_by:
            raise ValueError(f"choose_by={self.choose_by} is better when it is smaller: name a measure to maximise")

    # ---- the parts ----------------------------------------------------------------------------------------------

    def _new_parts(self) -> Parts:
        """As many as there can be: one for all lists, then one for each cluster or, shrunk, for each number of them."""
        width, several = self.transform.num_outputs, [number for number in self.numbers if number > 1]
        if self.assignment == "shrink":
            widths = [width, *[width * (max(self.numbers) + 1)] * len(several)]
        else:
            widths = [width] * (1 + sum(several))
        return Parts([make_base(self.base, width, self.base_rounds, self.base_options) for width in widths])

    def _take_shape(self, base: Any) -> None:
        """That of the base: by rounds or by gradient."""
        self.by_rounds, self.certified, self.is_path = base.by_rounds, base.certified, base.is_path
        self.takes = base.takes & {"corpus"}
        if self.by_rounds:
            self.rounds = base.rounds
            start_rounds(self)
        else:
            self.lr, self.weight_decay = base.lr, base.weight_decay

    def inputs_sized(self) -> None:
        if self.parts[0].num_features != self.transform.num_outputs:
            self.parts = self._new_parts()

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage != "fit" or not self.several:
            return
        if "val" not in self.data.sets:
            raise ValueError(f"clusters={self.numbers} are chosen from on validation lists, and there are none")
        if self.choose_by not in self.data.measures:
            raise ValueError(f"choose_by={self.choose_by} is not among the measures {', '.join(self.data.measures)}")
        self.candidates = nn.ModuleList(MeasuredSplit(self.data, "val") for _ in self.numbers)

    def prepare(self) -> None:
        self.findings = self.clusters.fit(self)
        models = self._numbered()
        self.store({"models": models})
        self.resize("done", (len(self.parts),))
        self.chosen.zero_()

    def _numbered(self) -> Tensor:
        """The part of each cluster: 0, that of all lists, where it holds all of them or no pair to learn from; clusters
        of the same lists share one, and shrunk ones of one number."""
        pairs = torch.from_numpy(self.data.sets["train"].pairs > 0).to(self.device)
        table = torch.zeros(len(self.numbers), max(self.numbers), dtype=torch.int64, device=self.device)
        known: dict[Any, int] = {}
        for row, labels in enumerate(self.clusters.labels):
            for each in range(int(labels.max()) + 1):
                inside = labels == each
                if not inside.all() and (inside & pairs).any():
                    key = row if self.assignment == "shrink" else inside.cpu().numpy().tobytes()
                    table[row, each] = known.setdefault(key, len(known) + 1)
        return table

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self._kept = {}
        lists = resident_lists(self)
        sets = [lists, *(self._lists_of_part(lists, *place) for place in self._places())]
        self.parts.start(self, [lists_as_data(self, part) for part in sets])

    def _places(self) -> list[tuple[int, int]]:
        """Row of `models` and cluster where each part but the first stands first."""
        found: dict[int, tuple[int, int]] = {}
        for row, models in enumerate(self.models.tolist()):
            for each, part in enumerate(models):
                found.setdefault(part, (row, each))
        return [found[part] for part in range(1, max(found) + 1)]

    def _lists_of_part(self, lists: RankingSet, row: int, each: int) -> RankingSet:
        labels = self.clusters.labels[row]
        if self.assignment != "shrink":
            return lists.subset((labels == each).nonzero().flatten())
        rows = self._spread(lists[: len(lists)], labels).x
        return RankingSet(rows, lists.labels, lists.offsets, pairs=lists.pairs, num_grades=lists.num_grades)

    def _spread(self, batch: Batch, cluster: Tensor) -> Batch:
        """Lists of these clusters (Q,) with the rows of a model that corrects itself for each cluster."""
        batch = batch.flat()
        rows: Any = batch.x
        entries = per_entry(cluster, batch.offsets, len(batch.labels))
        return batch._replace(x=spread(rows, entries, max(self.numbers), self.stiffness))

    def on_fit_end(self) -> None:
        if self.several and "of validation" not in self.findings:
            rank_zero_warn(f"clusters={self.numbers} were never compared on validation lists: the global model ranks")
        self.parts.end()
        self._kept = {}
        super().on_fit_end()

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["parts"] = self.parts.states()

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self.inputs_sized()
        self.clusters.hashed = None
        self.parts.load(checkpoint["parts"])

    # ---- learning -----------------------------------------------------------------------------------------------

    def round(self) -> bool:
        if not self.done.any():
            self._solve_together()
        through = self.parts.round(self.done)
        self.certificate = self.parts.certificate()
        self.log("train/parts", float(sum(not part.converged for part in self.parts.used())), prog_bar=True)
        return through

    def _solve_together(self) -> None:
        """All models of clusters in one optimisation, where they are ListNets: what is left to their rounds is to see
        that they are at their minimum. The global model goes its own way, so that it is that of a ListNet to the bit.
        """
        first, places = self.parts[0], self._places()
        if not places or not isinstance(first, ListNet) or self.assignment == "shrink":
            return
        rows = [(self.clusters.labels[row] == each).nonzero().flatten() for row, each in places]
        members = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        options = {"l2": first.l2, "tolerance": first.tolerance, "members": members, "reduce": self._reduce}
        lists = join_lists((batch.flat() for batch in self.batches()), reduce=self._reduce)
        found = solve_many_linear(lists, len(places), **options)  # type: ignore[arg-type]
        for part, weight in zip(self.parts.used()[1:], found.weight, strict=True):
            part.scorer.weight.copy_(weight)

    def loss(self, batch: Batch) -> Tensor:
        """The sum of those of all parts that learn from a list."""
        losses = self.parts[0].loss(batch)
        for part, (row, each) in zip(self.parts.used()[1:], self._places(), strict=True):
            cluster = self.clusters.labels[row, batch.query]
            if self.assignment == "shrink":
                losses = losses + part.loss(self._spread(batch, cluster))
            else:
                lists = (cluster == each).nonzero().flatten()
                losses = losses.index_add(0, lists, part.loss(batch.take(lists)[0]))
        idle = [parameter.sum() for parameter in self.parameters() if parameter.requires_grad]
        return losses + 0 * torch.stack(idle).sum() if len(self.parts) > 1 else losses

    # ---- scoring ------------------------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        self._check_fitted()
        row = int(self.chosen)
        return self._scores(batch, row, self.clusters.nearest(batch)[1] if self._is_local(row) else None)

    def _check_fitted(self) -> None:
        if not len(self.models):
            raise ValueError("this LocalRank is not fitted: it knows no clusters")

    def _is_local(self, row: int) -> bool:
        """Whether lists are ranked by more than the global model."""
        return bool(self.models[row].any())

    def _scores(self, batch: Batch, row: int, place: Tensor | None) -> Tensor:
        """With the clusters of this row, for lists whose most similar training lists are at `place (Q,)`."""
        if place is None or not self._is_local(row):
            return self.parts[0].score(batch)
        cluster = self.clusters.of(place, row)
        part = self._part_of(cluster, row)
        if self.assignment == "hard":
            return self._by_parts(batch, part)
        if self.assignment == "soft":
            local, without = self._mixed(batch, row), cluster < 0
        else:
            local, without = self.parts[int(self.models[row].max())].score(self._spread(batch, cluster)), part == 0
        return torch.where(per_entry(without, batch.offsets, len(batch.labels)), self.parts[0].score(batch), local)

    def _part_of(self, cluster: Tensor, row: int) -> Tensor:
        """That ranks lists of these clusters (Q,)."""
        return torch.where(cluster < 0, 0, self.models[row, cluster.clamp(min=0)])

    def _by_parts(self, batch: Batch, part: Tensor) -> Tensor:
        """Each list by one part, `part (Q,)`."""
        scores: Tensor | None = None
        for number in part.unique().tolist():
            some, entries = batch.take((part == number).nonzero().flatten())
            found = self.parts[number].score(some)
            scores = found.new_zeros(len(batch.labels)) if scores is None else scores
            scores[entries] = found
        return self.parts[0].score(batch) if scores is None else scores

    def _mixed(self, batch: Batch, row: int) -> Tensor:
        """The scores of all clusters, in shares that fall with the distance from their nearest list."""
        shares = (self.clusters.closest(batch, row) / self.temperature).softmax(1)
        lists = list_ids(batch.offsets, len(batch.labels))
        every = torch.stack(
            [self.parts[number].score(batch) for number in self.models[row, : shares.shape[1]].tolist()]
        )
        return (every * shares.T[:, lists].to(every.dtype)).sum(0)

    def nearest(self, x: Tensor, offsets: Tensor, *, index: Tensor | None = None) -> dict[str, Tensor]:
        """For raw lists: the most similar training list, its similarity, and the cluster and part that rank, (Q,) each;
        -1 where a list has no shape and the global model, part 0, ranks it."""
        self._check_fitted()
        if max(self.numbers) == 1:
            raise ValueError("clusters=1 compares no lists: the global model ranks them all")
        similarity, place = self.clusters.nearest(self.inputs(x, offsets, index=index))
        row = int(self.chosen)
        cluster = self.clusters.of(place, row)
        return {"list": place, "similarity": similarity, "cluster": cluster, "part": self._part_of(cluster, row)}

    # ---- the number of clusters ---------------------------------------------------------------------------------

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """While several numbers of clusters are fitted, each is measured."""
        if not self._chooses():
            return super().validation_step(batch, batch_index)
        bare = without_labels(batch)
        place = self._nearest_kept(bare) if any(map(self._is_local, range(len(self.numbers)))) else None
        tiebreak = self.data.tiebreak("val", batch) if self.measuring["val"].needs_ids else None
        with self.scoring():
            for row, measuring in enumerate(self.candidates):
                measuring.update(self._scores(bare, row, place), batch, tiebreak)  # type: ignore[operator]

    def evaluation_scores(self, split: str, batch: Batch) -> Tensor:
        """While fitting, clouds are compared once: they do not change."""
        row = int(self.chosen)
        if self.trainer.state.fn != "fit" or not self._is_local(row):
            return super().evaluation_scores(split, batch)
        bare = without_labels(batch)
        return self._scores(bare, row, self._nearest_kept(bare))

    def _chooses(self) -> bool:
        return self.several and self.trainer.state.fn == "fit" and not self.trainer.sanity_checking

    def _nearest_kept(self, batch: Batch) -> Tensor:
        """Of the validation lists of a fit."""
        key = int(batch.query[0]) if batch.num_lists else -1
        if key not in self._kept:
            self._kept[key] = self.clusters.nearest(batch)[1]
        return self._kept[key]

    def on_validation_epoch_end(self) -> None:
        if not self._chooses():
            return super().on_validation_epoch_end()
        measured = [each.conclude() for each in self.candidates]  # type: ignore[operator]
        first = self.data.conventions[0]
        values = torch.stack([found[first]["per_query"][self.choose_by] for found in measured])
        row, gain, error = smallest_not_worse(values)
        best = self.numbers[int(values.nanmean(1).argmax())]
        self.chosen.fill_(row)
        tried = ", ".join(map(str, self.numbers))
        found = f"best of {tried} by {self.choose_by}: {best} ({gain:+.4f} ±{error:.4f} against {self.numbers[0]})"
        self.findings |= {"clusters": self.numbers[row], "of validation": found}
        self._publish("val", measured[row])
        self.log("val/clusters", float(self.numbers[row]))


def smallest_not_worse(values: Tensor) -> tuple[int, float, float]:
    """Of methods in order of their size, with measures `(R, Q)` per query (nan: none), the first that is not worse than
    the best by more than one standard error of the paired difference; and what the best gains over the first, with the
    standard error of that.

    >>> row, gain, error = smallest_not_worse(torch.tensor([[0.5, 0.5, 0.5], [0.9, 0.5, 0.2]]))
    >>> row, round(gain, 3), round(error, 3)
    (0, 0.033, 0.203)
    """
    values = values[:, ~values.isnan().any(0)].double()
    if values.shape[1] < 2:
        return 0, 0.0, 0.0
    losses = values[values.mean(1).argmax()] - values
    gain, error = losses.mean(1), losses.std(1) / losses.shape[1] ** 0.5
    return int((gain <= error).nonzero()[0]), float(gain[0]), float(error[0])
