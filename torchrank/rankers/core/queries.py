"""What the values per query are looked at by: the length of each list, its relevant documents, its group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.functional.conventions import convention_of
from torchrank.functional.ragged import segment_sum
from torchrank.rankers.core.ranker import Ranker

BUDGET = 20_000  # entries of a batch


@torch.no_grad()
def query_facts(ranker: Ranker, lists: RankingSet, convention: str = "default") -> dict[str, NDArray[Any]]:
    """Facts about each list of a set, for `per_query.npz`.

    Args:
        ranker: a fitted ranker.
        lists: the test lists, with raw rows.
        convention: whose threshold says what is relevant.

    Returns:
        "query", the id (Q,) as text; "length" and "relevant", numbers of documents (Q,); and, where the ranker has
        groups of queries, "group" (Q,), its number from 0, or -1 for a list without one.

    Example:
        >>> from torchrank import SingleFeature
        >>> lists = RankingSet(torch.eye(3), torch.tensor([0.0, 2.0, 1.0]), torch.tensor([0, 1, 3]))
        >>> facts = query_facts(SingleFeature(3).fit(lists), lists)
        >>> {name: values.tolist() for name, values in facts.items()}
        {'query': ['0', '1'], 'length': [1, 2], 'relevant': [0, 2]}
    """
    ids = range(len(lists)) if lists.query_ids is None else lists.query_ids
    facts = {"query": np.asarray(ids).astype(str), "length": np.asarray(lists.lengths, dtype=np.int64)}
    facts["relevant"] = _num_relevant(lists, convention)
    groups = _groups(ranker, lists)
    return facts if groups is None else {**facts, "group": groups}


def _num_relevant(lists: RankingSet, convention: str) -> NDArray[np.int64]:
    threshold = convention_of(convention, lists.relevant_from if convention == "letor" else None).threshold
    counts = [np.zeros(0, dtype=np.int64)]
    for first, last in ranges(lists.lengths, BUDGET, 0, len(lists)):
        batch = lists[first:last]
        counts.append(segment_sum((batch.labels >= threshold).double(), batch.offsets).long().cpu().numpy())
    return np.concatenate(counts)


def _groups(ranker: Ranker, lists: RankingSet) -> NDArray[np.int64] | None:
    """The group of each list; None if the ranker has none."""
    if not ranker.has_groups:
        return None
    ready = (lists.to if lists.is_shared else lists.streamed)(ranker.device, ranker.transform)
    found = [ranker.groups_of(ready[first:last]) for first, last in ranges(lists.lengths, BUDGET, 0, len(lists))]
    return torch.cat(found).cpu().numpy().astype(np.int64)
