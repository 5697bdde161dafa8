"""Measures of what a module ranks: summed over batches and processes, for any LightningModule and for plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from torchrank.data.batch import Batch
from torchrank.data.datamodule import RankingDataModule
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError
from torchrank.functional.conventions import (
    convention_of,
    defines,
    describe,
    evaluate,
    parse_measure,
)
from torchrank.functional.ragged import entries_of, segment_max
from torchrank.record import monitor_name

MEASURES = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr")


class RankingMeasures(Metric):
    """Means of `measures` in one convention over all lists of all processes; lists without a value (nan) are left out.

    All states are sums, so any split of the lists into batches and processes gives the same result, to the rounding of
    float64. `update` never synchronises; `lists`, `empty` and `per_query()` are those of `compute()`, which every
    process has to call.

    Args:
        measures: names such as "ndcg@10", "map", "p@5".
        convention: whose definitions: default, letor, lightgbm, xgboost, trec, sklearn.
        num_queries: keep the value of every list too; each process fills its own rows of one table.
        threshold: the lowest grade that counts as relevant; None: that of the convention.
        max_label: the highest grade of the data set, for err.

    Example:
        >>> measures = RankingMeasures(["ndcg@10", "map"])
        >>> measures.update(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]))
        >>> {name: round(value.item(), 4) for name, value in measures.compute().items()}
        {'ndcg@10': 0.6309, 'map': 0.5}
        >>> measures.lists, measures.empty
        (2, 1)
    """

    full_state_update = False
    sums: Tensor  # (measures,)
    counts: Tensor  # (measures,) lists with a value
    totals: Tensor  # (3,) lists, lists without relevant entry, batches with NaN scores
    table: Tensor  # (num_queries, measures)
    seen: Tensor  # (num_queries,)

    def __init__(
        self,
        measures: Sequence[str],
        convention: str = "default",
        *,
        num_queries: int | None = None,
        threshold: float | None = None,
        max_label: float | None = None,
    ):
        super().__init__()
        for name in measures:  # a misspelt measure fails here, not after the first epoch
            if parse_measure(name, convention).family == "err" and max_label is None:
                raise ValueError("err needs max_label, the top label of the data set (4 for web data, 2 for MQ2008)")
        self.measures, self.convention, self.num_queries = list(measures), convention, num_queries
        self.threshold, self.max_label = threshold, max_label
        width = len(self.measures)
        self._sum_state("sums", width, dtype=torch.float64)
        self._sum_state("counts", width)
        self._sum_state("totals", 3)
        if num_queries is not None:
            self._sum_state("table", num_queries, width, dtype=torch.float64)
            self._sum_state("seen", num_queries)

    def _sum_state(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn: Any, *arguments: Any) -> Any:
        """A cast of the ranker (`trainer.precision=bf16-true`) does not touch the sums: they follow to its device."""
        return super()._apply(lambda state: state.to(fn(state.new_empty(0)).device), *arguments)

    def update(
        self,
        scores: Tensor,
        labels: Tensor,
        offsets: Tensor,
        *,
        query: Tensor | None = None,
        tiebreak: Tensor | None = None,
        classes: Tensor | None = None,
        query_classes: Tensor | None = None,
        max_length: int | None = None,
        num_grades: int | None = None,
    ) -> None:
        """Add the lists of a batch.

        `query (Q,)` are their rows in the table of values; `classes (N,)` and `query_classes (Q,)` are for
        `knn_error@k`; `tiebreak (N,)` orders entries with equal scores, smaller first.
        """
        found = evaluate(
            scores,
            labels,
            offsets,
            measures=self.measures,
            convention=self.convention,
            threshold=self.threshold,
            max_label=self.max_label,
            tiebreak=tiebreak,
            classes=classes,
            query_classes=query_classes,
            max_length=max_length,
            num_grades=num_grades,
        )
        values = torch.stack([found[name].to(self.sums.dtype) for name in self.measures], dim=1)  # (Q, measures)
        defined = ~values.isnan()
        self.sums += torch.where(defined, values, 0).sum(0)
        self.counts += defined.sum(0)
        threshold = convention_of(self.convention, self.threshold).threshold
        empty = (segment_max(labels, offsets) < threshold).sum()
        lists = torch.full_like(empty, len(offsets) - 1)
        self.totals += torch.stack([lists, empty, torch.isnan(scores).any().long()])
        if self.num_queries is not None:
            if query is None:
                raise ValueError(f"RankingMeasures(num_queries={self.num_queries}) keeps values per list: give query=")
            self.table[query] = values
            self.seen[query] += 1

    def compute(self) -> dict[str, Tensor]:
        """Mean of each measure over the lists that have a value; nan if none has."""
        lists, empty, invalid = self.totals.tolist()
        if invalid:
            raise ValueError(f"scores were NaN in {invalid} batches: no ranking is defined. Did training diverge?")
        self._lists, self._empty = int(lists), int(empty)
        if self.num_queries is not None:
            if (self.seen > 1).any():
                again = int(self.seen.argmax())
                raise ValueError(f"list {again} was measured {self.seen[again].item()} times: reset() between passes")
            self._table = torch.where(self.seen[:, None] > 0, self.table, torch.nan)
        return dict(zip(self.measures, self.sums / self.counts, strict=True))

    @property
    def lists(self) -> int:
        """Number of lists measured, over all processes."""
        self.compute()
        return self._lists

    @property
    def empty(self) -> int:
        """Number of lists without a relevant entry: left out of the means where the convention gives them no value."""
        self.compute()
        return self._empty

    def per_query(self) -> dict[str, Tensor]:
        """Value of every list, `(num_queries,)` per measure; nan where it has none or was not measured."""
        if self.num_queries is None:
            raise ValueError("values per list are kept only with num_queries=: give it when making RankingMeasures")
        self.compute()
        return dict(zip(self.measures, self._table.unbind(1), strict=True))

    def summary(self) -> dict[str, Any]:
        """The text of the convention, the numbers of lists, the means and, where they are kept, the values per list."""
        found = {
            "text": describe(self.convention, threshold=self.threshold),
            "lists": self.lists,
            "empty": self.empty,
            "measures": {measure: float(value) for measure, value in self.compute().items()},
        }
        if self.num_queries is not None:
            found["per_query"] = {measure: values.cpu() for measure, values in self.per_query().items()}
        return found


class SplitMeasures:
    """The measures of one split, in every convention that was asked for and for every candidate of a module.

    The first convention has to define every measure; the further ones are asked for those that they define.

    Args:
        measures: their names.
        conventions: their names.
        lists: the lists that will be measured; without them there are no values per list.
        max_label: the highest grade, for err; by default that of the lists.

    Example:
        >>> lists = RankingSet(torch.eye(2), torch.tensor([0.0, 1.0]), torch.tensor([0, 2]))
        >>> measures = SplitMeasures(["mrr"], lists=lists)
        >>> measures.update(torch.tensor([2.0, 1.0]), lists[:])
        >>> measures.conclude()[0]["default"]["measures"]
        {'mrr': 0.5}
    """

    def __init__(
        self,
        measures: Sequence[str],
        conventions: Sequence[str] = ("default",),
        lists: RankingSet | None = None,
        max_label: float | None = None,
    ):
        self.measures, self.conventions, self.lists, self.max_label = measures, conventions, lists, max_label
        self.voting = any(measure.startswith("knn_error") for measure in measures)
        tensors: dict[str, Tensor | None] = {}
        if lists is not None:
            tensors = {"classes": lists.classes, "corpus_classes": lists.corpus_classes, "offsets": lists.offsets}
            tensors["tiebreak"] = lists.tiebreak() if "trec" in conventions else None
        self._known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if self.voting and "classes" not in self._known:
            raise DataError(
                "knn_error@k lets the classes of the nearest points vote, but these lists have none: measure it on "
                "data=points or data=gaussian."
            )
        self.candidates = [self._new()]  # what cannot be measured is refused here

    def _new(self) -> dict[str, RankingMeasures]:
        """The measures of one candidate, by convention."""
        found, lists = {}, self.lists
        for name in self.conventions:
            defined = [each for each in self.measures if name == self.conventions[0] or defines(name, each)]
            label = self.max_label if self.max_label is not None or lists is None else lists.max_label
            found[name] = RankingMeasures(
                defined,
                name,
                num_queries=None if lists is None else len(lists),
                threshold=lists.relevant_from if lists is not None and name == "letor" else None,
                max_label=label,
            )
        return found

    def update(self, scores: Tensor, batch: Batch) -> None:
        """Add the lists of a batch with these scores: (N,), or (candidates, N)."""
        self._known = {name: tensor.to(scores.device) for name, tensor in self._known.items()}
        rows, known, more = scores if scores.dim() == 2 else scores[None], self._known, {}
        if self.voting:
            more["classes"] = known["corpus_classes"][batch.index]
            more["query_classes"] = known["classes"][batch.query]
        entries = entries_of(known["offsets"], batch.query, len(batch.labels))[0] if "tiebreak" in known else None
        self.candidates += [self._new() for _ in rows[len(self.candidates) :]]
        for candidate, row in zip(self.candidates, rows, strict=False):
            for name, measures in candidate.items():
                measures.to(scores.device).update(
                    row,
                    batch.labels,
                    batch.offsets,
                    query=batch.query,
                    tiebreak=known["tiebreak"][entries] if name == "trec" and entries is not None else None,
                    max_length=batch.max_length,
                    num_grades=batch.num_grades,
                    **more,
                )

    def conclude(self) -> list[dict[str, dict[str, Any]]]:
        """What was measured over all processes, by candidate and convention; then everything starts over."""
        found = [{name: measures.summary() for name, measures in each.items()} for each in self.candidates]
        self.reset()
        return found

    def reset(self) -> None:
        """Forget what was measured so far."""
        for measures in (measures for candidate in self.candidates for measures in candidate.values()):
            measures.reset()


class RankingEvaluation(Callback):
    """Measures the scores (N,) that `validation_step` and `test_step` of any module return, and logs the means.

    `val/ndcg@10` is the mean in the first convention, `val/letor/ndcg@10` in another one: monitor them as usual.
    `measured[split][convention]` holds the text of the convention, the number of lists, the means and, on a
    `RankingDataModule`, the value of every list. Rankers of torchrank bring one with the default measures unless the
    trainer has one.

    Args:
        measures: names such as "ndcg@10", "map", "p@5"; the first convention has to define all of them.
        conventions: whose definitions: default, letor, lightgbm, xgboost, trec, sklearn.
        every_round: validate certified fits of torchrank after every round too, not only at their end.

    Example:
        >>> evaluation = RankingEvaluation(["ndcg@10", "map"], ["default", "letor"])
        >>> trainer = Trainer(callbacks=[evaluation], logger=False, accelerator="cpu")
    """

    def __init__(
        self,
        measures: Sequence[str] = MEASURES,
        conventions: Sequence[str] = ("default",),
        every_round: bool = False,
    ):
        self.measures, self.conventions, self.every_round = list(measures), list(conventions), every_round
        for measure in self.measures:
            parse_measure(measure, self.conventions[0])
        self.measured: dict[str, dict[str, dict[str, Any]]] = {}
        self._splits: dict[str, SplitMeasures] = {}

    def names(self, split: str = "val") -> list[str]:
        """The names under which the means of a split are logged."""
        first, *others = self.conventions
        pairs = [(first, each) for each in self.measures]
        pairs += [(name, each) for name in others for each in self.measures if defines(name, each)]
        return [monitor_name(split, measure, name, self.conventions) for name, measure in pairs]

    # ---- Lightning's hooks --------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """What the data does not allow to measure is refused here, before a fit that would end with it."""
        missing = [measure for measure in getattr(module, "chosen_by", ()) if measure not in self.measures]
        if stage == "fit" and missing:
            name, names = type(module).__name__, ", ".join(self.measures)
            raise ValueError(f"{name} chooses by {missing[0]}, which is not among the measures {names}")
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        sets = data.sets if isinstance(data, RankingDataModule) else {}
        splits = [split for split in ("val", "test") if split in sets or not sets]
        top = top_grade(sets.get("train"))
        self._splits = {each: SplitMeasures(self.measures, self.conventions, sets.get(each), top) for each in splits}

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._splits = {}

    def on_validation_epoch_start(self, trainer: Trainer, module: LightningModule, split: str = "val") -> None:
        self._splits[split].reset()

    def on_test_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.on_validation_epoch_start(trainer, module, split="test")

    def on_validation_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, *_: Any, split: str = "val"
    ) -> None:
        if not isinstance(outputs, Tensor) or outputs.shape[-1:] != batch.labels.shape:
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            step, wanted = "validation_step" if split == "val" else "test_step", tuple(batch.labels.shape)
            raise ValueError(f"{step} must return the scores {wanted} of the batch to be measured, got {found}")
        self._splits[split].update(outputs.detach(), batch)

    def on_test_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, *_: Any) -> None:
        self.on_validation_batch_end(trainer, module, outputs, batch, split="test")

    def on_validation_epoch_end(self, trainer: Trainer, module: LightningModule, split: str = "val") -> None:
        found, first = self._splits[split].conclude(), self.conventions[0]
        chosen = module.choose([each[first] for each in found]) if len(found) > 1 else 0  # type: ignore[operator]
        self.measured[split] = found[chosen]
        for name, part in found[chosen].items():
            for measure, value in part["measures"].items():
                module.log(monitor_name(split, measure, name, self.conventions), value)

    def on_test_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.on_validation_epoch_end(trainer, module, split="test")


def top_grade(train: RankingSet | None) -> float | None:
    """The highest grade of a data set: the published one, else that of the training lists."""
    if train is None or train.max_label is not None:
        return None if train is None else train.max_label
    return train.num_grades - 1 if train.num_grades else float(train.labels.max())
