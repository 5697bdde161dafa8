"""The measures of one split of a run, in every convention that was asked for."""

from typing import Any

from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.datamodule import RankingDataModule
from torchrank.functional.conventions import defines, describe
from torchrank.rankers.core.evaluation import RankingMetrics


class MeasuredSplit(nn.Module):
    """The first convention has to define every measure; the further ones are asked for those that they define."""

    classes: Any
    corpus_classes: Any

    def __init__(self, data: RankingDataModule, split: str):
        super().__init__()
        self.needs_ids = "trec" in data.conventions
        self.voting = any(measure.startswith("knn_error") for measure in data.measures)
        lists = data.sets[split]
        if self.voting and lists.classes is None:
            raise ValueError(
                f"knn_error@k lets the classes of the nearest points vote, and the {split} lists of data={data.name} "
                "have none: it is a measure of data=points and data=gaussian."
            )
        self.register_buffer("classes", lists.classes, persistent=False)  # (Q,) of the queries
        self.register_buffer("corpus_classes", lists.corpus_classes, persistent=False)  # (n,) of the rows they rank
        self.metrics: Any = nn.ModuleDict({name: _metrics(data, split, name) for name in data.conventions})

    def update(self, scores: Tensor, batch: Batch, tiebreak: Tensor | None) -> None:
        """`tiebreak` is the order of the document ids, where `needs_ids`."""
        for name, metrics in self.metrics.items():
            metrics.update(
                scores,
                batch.labels,
                batch.offsets,
                query=batch.query,
                tiebreak=tiebreak if name == "trec" else None,
                classes=self.corpus_classes[batch.index] if self.voting else None,
                query_classes=self.classes[batch.query] if self.voting else None,
                max_length=batch.max_length,
                num_grades=batch.num_grades,
            )

    def conclude(self) -> dict[str, dict]:
        """What was measured, by convention, over all processes; then everything starts anew."""
        found = {name: _found(metrics) for name, metrics in self.metrics.items()}
        for metrics in self.metrics.values():
            metrics.reset()
        return found


def _metrics(data: RankingDataModule, split: str, convention: str) -> RankingMetrics:
    first = convention == data.conventions[0]
    measures = [measure for measure in data.measures if first or defines(convention, measure)]
    return RankingMetrics(
        measures,
        convention,
        num_queries=len(data.sets[split]),
        threshold=data.letor_threshold if convention == "letor" else None,
        max_label=data.max_label if any(measure.startswith("err") for measure in measures) else None,
    )


def _found(metrics: RankingMetrics) -> dict[str, Any]:
    return {
        "text": describe(metrics.convention, threshold=metrics.threshold),
        "lists": metrics.lists,
        "empty": metrics.empty,
        "measures": {measure: float(value) for measure, value in metrics.compute().items()},
        "per_query": {measure: values.cpu() for measure, values in metrics.per_query().items()},
    }
