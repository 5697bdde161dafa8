"""Measures of what a module ranks: summed over batches and processes, for any LightningModule and for plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.datamodule import RankingDataModule
from torchrank.data.relevance import Judged, WholeCorpus
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError, DataWarning
from torchrank.functional.conventions import canonical, convention_of, defines, parse_measure, tell_nan
from torchrank.functional.measures.evaluation import known_from_ranks
from torchrank.functional.ragged import entries_of
from torchrank.metrics import RankingMetrics
from torchrank.record import monitor_name

MEASURES = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr")
TOP = 10  # ranks of which it is told how many documents were not judged
UNJUDGED = f"unjudged@{TOP}"


class SplitMeasures:
    """The measures of one split, in every convention that was asked for and for every candidate of a module.

    The first convention has to define every measure; the further ones are asked for those that they define.

    Args:
        measures: their names.
        conventions: their names.
        lists: the lists that will be measured; without them there are no values per list.
        max_label: the highest grade, for err; by default that of the lists.
        judgements: whether to count judged documents in the top 10, where a corpus has judgements.

    Example:
        >>> import torch
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
        judgements: bool = False,
    ):
        self.measures, self.conventions = [canonical(each) for each in measures], conventions
        self.lists, self.max_label = lists, max_label
        known = lists.relevance if judgements and lists is not None and isinstance(lists.relevance, Judged) else None
        self.judged = None if known is None else replace(known, grades=torch.ones_like(known.grades), num_grades=2)
        self.in_top = RankingMetrics([f"p@{TOP}"])
        self.voting = any(measure.startswith("knn_error") for measure in self.measures)
        tensors: dict[str, Tensor | None] = {}
        if lists is not None:
            tensors = {"classes": lists.classes, "corpus_classes": lists.corpus_classes, "offsets": lists.offsets}
            if "trec" in conventions:
                whole = isinstance(lists.relevance, WholeCorpus)
                tensors |= {"falling": lists.row_tiebreak()} if whole else {"tiebreak": lists.tiebreak()}
            tensors["places"] = lists.id_places()
        self._known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if self.voting and "classes" not in self._known:
            raise DataError(
                "knn_error@k lets the classes of the nearest points vote, but these lists have none: measure it on "
                "data=points or data=gaussian."
            )
        self.candidates = [self._new()]  # what cannot be measured is refused here

    @property
    def takes_ranks(self) -> bool:
        """Whether all measures are known from the ranks of the judged documents."""
        return known_in_all(self.measures, self.conventions)

    def _new(self) -> dict[str, RankingMetrics]:
        """The measures of one candidate, by convention."""
        found, lists = {}, self.lists
        for name in self.conventions:
            defined = [each for each in self.measures if name == self.conventions[0] or defines(name, each)]
            label = self.max_label if self.max_label is not None or lists is None else lists.max_label
            found[name] = RankingMetrics(
                defined,
                name,
                num_queries=None if lists is None else len(lists),
                threshold=lists.relevant_from if lists is not None and name == "letor" else None,
                max_label=label,
            )
        return found

    def update(self, scores: Tensor, batch: Batch) -> None:
        """Add the lists of a batch with these scores: (N,), or (candidates, N). Of a ranked batch, the ranks."""
        self._known = {name: tensor.to(scores.device) for name, tensor in self._known.items()}
        rows, known = scores if scores.dim() == 2 else scores[None], self._known
        more: dict[str, Any] = {}
        if self.voting:
            more["classes"] = known["corpus_classes"][batch.index]
            more["query_classes"] = known["classes"][batch.query]
        self.candidates += [self._new() for _ in rows[len(self.candidates) :]]
        for candidate, row in zip(self.candidates, rows, strict=False):
            for name, measures in candidate.items():
                measures.to(scores.device).update(
                    row,
                    batch.labels,
                    batch.lists,
                    query=batch.query,
                    **self._place_of(batch, name),
                    **more,
                )
        if self.judged is not None:
            self._count_judged(rows[0], batch)

    def _place_of(self, batch: Batch, convention: str) -> dict[str, Any]:
        """How the entries of a batch rank: by given ranks, or equal scores by their ids."""
        if batch.ranked:
            return {"num_documents": len(batch.x)}
        if convention == "trec" and "falling" in self._known:
            return {"tiebreak": self._known["falling"][batch.index]}
        if convention == "trec" and "tiebreak" in self._known:
            entries = entries_of(self._known["offsets"], batch.query, len(batch.labels))[0]
            return {"tiebreak": self._known["tiebreak"][entries]}
        places = self._known.get("places")
        return {} if places is None or batch.index is None else {"tiebreak": places[batch.index]}

    def _count_judged(self, scores: Tensor, batch: Batch) -> None:
        """Count the judged documents in the top of each list, by the precision of a label 1 for each of them."""
        labels = torch.ones_like(batch.labels)
        if not batch.ranked:
            positions = batch.query.cpu()
            labels = self.judged.entries(positions.numpy(), positions).labels.to(scores.device)  # type: ignore[union-attr]
        places = self._place_of(batch, self.conventions[0])
        self.in_top.to(scores.device).update(scores, labels, batch.lists.regraded(2), **places)

    def conclude(self) -> list[dict[str, dict[str, Any]]]:
        """What was measured over all processes, by candidate and convention; then everything starts over."""
        found = [{name: measures.summary() for name, measures in each.items()} for each in self.candidates]
        if self.judged is not None:
            share = self.in_top.summary()["measures"][f"p@{TOP}"]
            for part in found[0].values():
                part[UNJUDGED] = min(TOP, self.judged.num_rows) - TOP * share
        self.reset()
        return found

    def reset(self) -> None:
        """Forget what was measured so far."""
        for measures in (measures for candidate in self.candidates for measures in candidate.values()):
            measures.reset()
        self.in_top.reset()


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
        self.conventions, self.every_round = list(conventions), every_round
        parsed = [parse_measure(measure, self.conventions[0]) for measure in measures]
        self.measures = list(dict.fromkeys(map(str, parsed)))
        self.measured: dict[str, dict[str, dict[str, Any]]] = {}
        self._splits: dict[str, SplitMeasures] = {}
        self._told: set[str] = set()  # warnings

    def names(self, split: str = "val") -> list[str]:
        """The names under which the means of a split are logged."""
        first, *others = self.conventions
        pairs = [(first, each) for each in self.measures]
        pairs += [(name, each) for name in others for each in self.measures if defines(name, each)]
        return [monitor_name(split, measure, name, self.conventions) for name, measure in pairs]

    @property
    def takes_ranks(self) -> bool:
        """Whether all that is measured is known from the ranks of the judged documents."""
        return known_in_all(self.measures, self.conventions)

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
        self._splits = {
            each: SplitMeasures(self.measures, self.conventions, sets.get(each), top, judgements=each == "test")
            for each in splits
        }

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
        if not trainer.sanity_checking:
            self._warn_of_nan(split)
        for name, part in found[chosen].items():
            for measure, value in part["measures"].items():
                module.log(monitor_name(split, measure, name, self.conventions), value)

    def _warn_of_nan(self, split: str) -> None:
        """Say why measures of a split are nan, once."""
        lists = self._splits[split].lists
        longest = None if lists is None else int(lists.lengths.max(initial=0))
        for name, part in self.measured[split].items():
            means = {monitor_name(split, each, name, self.conventions): mean for each, mean in part["measures"].items()}
            told = tell_nan(means, convention_of(name).threshold, lists=part["lists"], longest=longest)
            for sentence in (each for each in told if each not in self._told):
                self._told.add(sentence)
                rank_zero_warn(sentence, category=DataWarning)

    def on_test_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.on_validation_epoch_end(trainer, module, split="test")


def known_in_all(measures: Sequence[str], conventions: Sequence[str]) -> bool:
    """Whether ranks are enough for these measures in each of the conventions that define them.

    >>> known_in_all(["ndcg@10", "map"], ["default"]), known_in_all(["auc"], ["default"])
    (True, False)
    """
    first, *others = conventions
    asked = {first: list(measures)} | {name: [each for each in measures if defines(name, each)] for name in others}
    return all(known_from_ranks(names, convention) for convention, names in asked.items())


def top_grade(train: RankingSet | None) -> float | None:
    """The highest grade of a data set: the published one, else that of the training lists."""
    if train is None or train.max_label is not None:
        return None if train is None else train.max_label
    if train.num_grades:
        return train.num_grades - 1
    known = train.relevance  # the labels of a whole corpus are too many to be made at once
    return float((known.grades if isinstance(known, Judged) else train.labels).max())
