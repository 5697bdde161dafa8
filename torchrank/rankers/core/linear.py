"""Rankers with linear scores: one weight vector for all lists, or one for each topic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.rows import ALONE, Share
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError
from torchrank.rankers.core.ranker import Ranker, TransformOption
from torchrank.solvers.linear.scores import entry_scores


class LinearRanker(Ranker):
    """Scores w.x, learned in float64. With `per_topic`, list q of every set is topic q and has weights of its own."""

    takes = frozenset({"sparse", "corpus"})
    weight: nn.Parameter  # (T, D): a row for each topic, or one

    def __init__(self, num_features: int, transform: TransformOption, rounds: int, per_topic: bool):
        super().__init__(num_features, transform, rounds)
        self.per_topic = per_topic
        self.topics: list[str] | None = None  # names of the topics, if the training lists have query_ids
        self.weight = nn.Parameter(torch.zeros(1, self.transform.num_outputs, dtype=torch.float64), requires_grad=False)

    @property
    def num_topics(self) -> int | None:
        return len(self.weight) if self.per_topic else None

    def score(self, batch: Batch) -> Tensor:
        return entry_scores(batch, self.weight.to(batch.x.dtype), self.per_topic)

    def density(self) -> float:
        return density_of(self.weight)

    def learn_transform(self, train: RankingSet, share: Share = ALONE) -> None:
        super().learn_transform(train, share)
        self.topics = topic_names(train) if self.per_topic else None

    def check_set(self, lists: RankingSet) -> None:
        super().check_set(lists)
        if self.per_topic and hasattr(self.kept, "lists"):  # during a fit
            check_topics(lists, len(self.kept.lists), self.topics)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.per_topic:
            train = self._data.sets["train"] if stage == "fit" else None
            topics = self.topics if train is None else topic_names(train)
            for lists in self._data.sets.values():
                check_topics(lists, len(self.weight) if train is None else len(train), topics)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"topics": self.topics}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.topics = state["topics"]


def density_of(weight: Tensor) -> float:
    """Share of non-zero weights."""
    return int(weight.count_nonzero()) / max(weight.numel(), 1)


def topic_names(lists: RankingSet) -> list[str] | None:
    """The query_ids as strings, if there are any."""
    return None if lists.query_ids is None else [str(name) for name in lists.query_ids]


def check_topics(lists: RankingSet, count: int, topics: list[str] | None) -> None:
    """Refuse a set whose lists are not these topics in this order; without names, only their number is compared."""
    if len(lists) != count:
        raise DataError(
            f"per_topic=true has weights for {count} topics, but the set '{lists.name}' has {len(lists)} lists: every "
            "set needs one list for each topic, in the same order"
        )
    for place, (name, topic) in enumerate(zip(topic_names(lists) or [], topics or [], strict=False)):
        if name != topic:
            raise DataError(
                f"list {place} of the set '{lists.name}' is topic {name!r}, but in the training lists it is {topic!r}: "
                "per_topic=true needs the same query_ids in the same order in every set"
            )
