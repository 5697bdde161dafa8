"""Deletes documents that no ranker can tell apart although their labels differ, as the LocalRank paper does.

Cleaning test data raises every measure, so it is done on request only. Queries that two sets have in common are found
by the same keys of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from torchrank.data.rows import ELEMENTS
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError
from torchrank.progress import bar


class CleanReport(NamedTuple):
    """What `clean` removed: contradictory documents, then whole queries.

    Args:
        documents_removed: documents in groups of equal rows that have different labels.
        queries_without_relevant: queries without a relevant document after that.
        queries_all_same: queries whose remaining documents all have the same label (`drop_all_same`).

    Example:
        >>> report = CleanReport(documents_removed=2, queries_without_relevant=1, queries_all_same=3)
        >>> report.queries_removed
        4
    """

    documents_removed: int
    queries_without_relevant: int
    queries_all_same: int

    @property
    def queries_removed(self) -> int:
        """The number of removed queries."""
        return self.queries_without_relevant + self.queries_all_same


def clean(lists: RankingSet, *, drop_all_same: bool = False) -> tuple[RankingSet, CleanReport]:
    """Delete groups of equal rows with different labels in a list, then queries without a relevant document.

    Rows are equal if all their stored features are (-0.0 equals 0.0). Equal rows with the same label are all kept. See
    Banerjee et al., "Efficient and accurate local learning for ranking", 2009.

    Args:
        lists: the set to clean; it stays as it is.
        drop_all_same: also delete queries whose documents all have the same label: they have no pair to learn from.

    Returns:
        The cleaned set (the same object if there was nothing to delete) and the `CleanReport`. Relevant means a label
        of at least 1.

    Example:
        >>> x, labels = torch.tensor([[1.], [1.], [2.], [3.]]), torch.tensor([0., 1., 1., 0.])
        >>> cleaned, report = clean(RankingSet(x, labels, torch.tensor([0, 3, 4])))
        >>> cleaned.labels, report
        (tensor([1.]), CleanReport(documents_removed=2, queries_without_relevant=1, queries_all_same=0))
    """
    labels, owner = lists.labels.cpu().numpy(), np.repeat(np.arange(len(lists)), lists.lengths)
    keep = ~contradictory(lists, labels, owner)
    best = np.full(len(lists), -np.inf)
    worst = np.full(len(lists), np.inf)
    np.maximum.at(best, owner[keep], labels[keep])
    np.minimum.at(worst, owner[keep], labels[keep])
    irrelevant = best < 1
    same = (best == worst) & ~irrelevant & drop_all_same
    report = CleanReport(int((~keep).sum()), int(irrelevant.sum()), int(same.sum()))
    if report.documents_removed + report.queries_removed == 0:
        return lists, report
    stay = ~(irrelevant | same)
    keep &= stay[owner]
    lengths = np.bincount(owner[keep], minlength=len(lists))[stay]
    places = (np.flatnonzero(keep), np.concatenate(([0], np.cumsum(lengths))))
    entries, offsets = (torch.from_numpy(array).to(lists.device) for array in places)
    return lists.pick(np.flatnonzero(stay), entries, offsets), report


def repeated_queries(lists: RankingSet, other: RankingSet) -> list[str]:
    """The ids of the queries that both sets have, with the same rows in any order, in the order of `lists`.

    An id alone tells nothing, since many files number their queries from 1. Sets without ids or with a shared corpus
    have no such queries.

    Example:
        >>> x, labels = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3)
        >>> lists = RankingSet(x, labels, torch.tensor([0, 2, 3]), query_ids=["1", "2"])
        >>> other = RankingSet(x.flip(0), labels, torch.tensor([0, 1, 3]), query_ids=["2", "1"])
        >>> repeated_queries(lists, other), repeated_queries(lists, RankingSet(x + 1, lists.relevance, query_ids="12"))
        (['1', '2'], [])
    """
    comparable = not lists.is_shared and not other.is_shared and lists.num_features == other.num_features
    if not comparable or lists.query_ids is None or other.query_ids is None:
        return []
    own, others = (np.array(list(each), dtype=str) for each in (lists.query_ids, other.query_ids))
    ids, mine, theirs = np.intersect1d(own, others, return_indices=True)
    same = (lists.lengths[mine] == other.lengths[theirs]) & (lists.lengths[mine] > 0)
    ids, mine, theirs = ids[same], mine[same], theirs[same]
    same = _list_keys(lists, mine) == _list_keys(other, theirs)
    found: list[str] = ids[same][np.argsort(mine[same])].tolist()
    return found


def _list_keys(lists: RankingSet, places: np.ndarray) -> np.ndarray:
    """A 64-bit key for each of these lists, which are not empty: the sum of the keys of its rows."""
    keys, step = [np.empty(0, np.uint64)], max(1, ELEMENTS // lists.num_features)
    bounds = np.arange(step, lists.lengths[places].sum(), step)
    for part in np.split(places, np.searchsorted(np.cumsum(lists.lengths[places]), bounds)):
        if len(part):
            starts = np.concatenate(([0], np.cumsum(lists.lengths[part])[:-1]))
            keys.append(np.add.reduceat(row_keys(lists[part].x), starts))
    return np.concatenate(keys)


def contradictory(lists: RankingSet, labels: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Whether the equal rows of an entry in its list have more than one label (N,)."""
    keys = row_keys(lists.x)
    if lists.index is not None:
        keys = keys[lists.index.cpu().numpy()]
    order = np.lexsort((keys, owner))
    groups = np.cumsum(_changes(owner[order]) | _changes(keys[order]))
    suspect = _mixed(groups, labels[order])
    order, groups = order[suspect], groups[suspect]  # only these rows must be read again
    if len(order) == 0:
        return np.zeros(len(labels), dtype=bool)
    rows = order if lists.index is None else lists.index.cpu().numpy()[order]
    groups = verified(groups, lists.x, rows)
    found = np.zeros(len(labels), dtype=bool)
    found[order[_mixed(groups, labels[order])]] = True
    return found


def row_keys(x: torch.Tensor | SparseRows) -> np.ndarray:
    """A 64-bit key for each row (n,), the same for equal rows: the sum of the bit patterns times random odd numbers.

    Zeros add nothing, so sparse rows have the keys of their dense form. NaN is refused.
    """
    factors = np.random.default_rng(0).integers(2**63, size=x.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    if isinstance(x, SparseRows):
        values, starts = x.values.cpu().numpy(), x.row_offsets.cpu().numpy()
        _refuse_nan(values, lambda place: int(np.searchsorted(starts, place, side="right")) - 1)
        sums = np.cumsum(_bits(values) * factors[x.columns.cpu().numpy()], dtype=np.uint64)
        sums = np.concatenate((np.zeros(1, np.uint64), sums))
        found: np.ndarray = sums[starts[1:]] - sums[starts[:-1]]  # exact, since integers wrap around
        return found
    keys, step = np.empty(len(x), dtype=np.uint64), max(1, ELEMENTS // x.shape[1])
    for start in bar(range(0, len(x), step), desc="compare rows"):
        values = x[start : start + step].cpu().numpy()
        _refuse_nan(values, lambda place, start=start, width=x.shape[1]: start + place // width)
        keys[start : start + step] = (_bits(values) * factors).sum(1, dtype=np.uint64)
    return keys


def verified(groups: np.ndarray, x: torch.Tensor | SparseRows, rows: np.ndarray) -> np.ndarray:
    """The groups (sorted numbers), split where their rows differ: two rows may have the same key by chance."""
    differs, step = np.zeros(len(groups), dtype=bool), max(1, ELEMENTS // x.shape[1])
    for start in range(1, len(groups), step):
        block = _dense(x, rows[start - 1 : start + step])
        differs[start : start + step] = (block[1:] != block[:-1]).any(1)
    groups = groups * len(groups)  # room for new numbers
    for group in np.unique(groups[differs & ~_changes(groups)]):
        members = np.flatnonzero(groups == group)
        groups[members] += np.unique(_dense(x, rows[members]) + 0.0, axis=0, return_inverse=True)[1].reshape(-1)
    return groups


def _mixed(groups: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether the group of each entry has more than one label; groups need not be contiguous."""
    _, place = np.unique(groups, return_inverse=True)
    low, high = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(low, place, labels)
    np.maximum.at(high, place, labels)
    return (low < high)[place]


def _changes(values: np.ndarray) -> np.ndarray:
    """Whether each value differs from the one before it; True for the first."""
    return np.concatenate((np.ones(min(1, len(values)), dtype=bool), values[1:] != values[:-1]))


def _bits(values: np.ndarray) -> np.ndarray:
    """The bit patterns as 64-bit integers, with -0.0 as 0.0; the upper half is mixed in, as round numbers end in 0s."""
    width = values.dtype.itemsize * 8
    bits = (values + 0.0).view(f"uint{width}").astype(np.uint64)
    return bits ^ (bits >> np.uint64(width // 2))


def _refuse_nan(values: np.ndarray, row: Callable[..., int]) -> None:
    if np.isnan(values).any():
        place = int(np.flatnonzero(np.isnan(values))[0])
        raise DataError(f"row {row(place)} contains NaN, which equals nothing: fill missing values before cleaning")


def _dense(x: torch.Tensor | SparseRows, rows: np.ndarray) -> np.ndarray:
    picked = x[torch.from_numpy(rows).to(x.device)]
    return (picked.dense() if isinstance(picked, SparseRows) else picked).cpu().numpy()
