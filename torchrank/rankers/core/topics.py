"""One model per topic: list q of every set has to be topic q."""

from torchrank.data.datamodule import RankingDataModule
from torchrank.data.sets import RankingSet


def check_topics(data: RankingDataModule, count: int, topics: list[str] | None) -> None:
    """Refuse sets whose lists are not these topics in this order; without names only their number is compared."""
    for lists in data.sets.values():
        _check_topics(lists, count, topics)


def topic_names(lists: RankingSet) -> list[str] | None:
    return None if lists.query_ids is None else [str(name) for name in lists.query_ids]


def _check_topics(lists: RankingSet, count: int, topics: list[str] | None) -> None:
    if len(lists) != count:
        raise ValueError(
            f"per_topic=true has weights for {count} topics, but the set '{lists.name}' has {len(lists)} lists: every "
            "set needs one list for each topic, in the same order"
        )
    for place, (name, topic) in enumerate(zip(topic_names(lists) or [], topics or [], strict=False)):
        if name != topic:
            raise ValueError(
                f"list {place} of the set '{lists.name}' is topic {name!r}, that of the training lists {topic!r}: "
                "per_topic=true needs the same query_ids in the same order in all sets"
            )
