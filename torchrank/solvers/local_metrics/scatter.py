"""Sums over pairs of high and low documents, as products of matrices: no pair is formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.data.training import TrainingLists
from torchrank.functional.ragged import list_ids, segment_max, segment_min, segment_sum
from torchrank.solvers.local_metrics.drawn_lists import take_lists


class PairSums(NamedTuple):
    """C sums over lists, in each of which a list may count several times, or not at all. Only lists with a high and a
    low document count."""

    similar: Tensor  # (C, D, D) over pairs of high documents
    dissimilar: Tensor  # (C, D, D) over pairs of a high and a low document
    pairs: Tensor  # (C, 2) numbers of pairs of either kind
    means: Tensor  # (C, 2, D) mean of the high and mean of the low documents of each list
    lists: Tensor  # (C,)

    def added(self) -> PairSums:
        """All sums added up, as one."""
        return PairSums(*(part.sum(0, keepdim=True) for part in self))

    def without(self, others: PairSums) -> PairSums:
        """The sums without some of their lists."""
        return PairSums(*(whole - part for whole, part in zip(self, others, strict=True)))


def high_and_low(labels: Tensor, offsets: Tensor, high: str) -> tuple[Tensor, Tensor]:
    """Masks (N,) of the high and the low documents of each list.

    Low documents have the smallest label of the list. High documents are never low and have a label of at least
    max(1, ceil(top / 2)) (`half`), the top label (`max`), or any label above 0 (`positive`).

    >>> high_and_low(torch.tensor([0., 1., 4.]), torch.tensor([0, 3]), "half")
    (tensor([False, False,  True]), tensor([ True, False, False]))
    """
    ids = list_ids(offsets, len(labels))
    top, low = segment_max(labels, offsets)[ids], labels == segment_min(labels, offsets)[ids]
    if high == "positive":
        return (labels > 0) & ~low, low
    least = top if high == "max" else (top / 2).ceil().clamp(min=1)
    return (labels >= least) & ~low, low


def pair_sums(lists: TrainingLists, shares: Sequence[Tensor], high: str) -> list[PairSums]:
    """Sums over pairs in one pass over the lists: `shares` (C, Q) say how often each list counts in each of C sums.

    Where lists hold most of a corpus, the weights of a corpus row add up over the lists, so that the squares of rows
    are summed once, whatever the number of lists.
    """
    corpus: Any = lists.corpus.double() if holds_corpus(lists) else None  # type: ignore[union-attr]
    centre: Any = None if corpus is None else corpus.mean(0)
    rows: Any = None if corpus is None else corpus - centre
    width, size = lists.lists[:0].x.shape[1], 0 if corpus is None else len(corpus)
    used = torch.stack([share.any(0) for share in shares]).any(0)
    all_used = rows is None and bool(used.all())
    into: list[Tensor] = []
    for count in map(len, shares):
        sizes = ((count, 2, width, width), (count, 2), (count, 2, width), (count,), (count, 2, size))
        into += [lists.zeros(*size) for size in sizes]

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        moments: Any
        if all_used:
            query, moments = batch.query, list_moments(batch.dense.double(), batch.labels, batch.offsets, high)
        elif rows is None:
            chosen = used[batch.query].nonzero().flatten()
            query, moments = batch.query[chosen], list_moments(*take_lists(batch, chosen), high)
        else:
            query, moments = batch.query, corpus_moments(batch, rows, centre, high)
        for place, share in enumerate(shares):
            scatter, pairs, means, number, weights = into[5 * place : 5 * place + 5]
            times = share[:, query]
            pairs += times @ moments.pairs
            means += torch.einsum("cq,qkd->ckd", times, moments.means)
            number += times @ moments.both
            moments.add(times, scatter, weights)

    total, sums = lists.total(add, tuple(into)), []
    for place in range(len(shares)):
        scatter, pairs, means, number, weights = total[5 * place : 5 * place + 5]
        if rows is not None:
            for one, weight in zip(scatter.flatten(0, 1), weights.flatten(0, 1), strict=True):
                one += rows.T @ (weight[:, None] * rows)
        sums.append(PairSums(scatter[:, 0], scatter[:, 1], pairs, means, number))
    return sums


def _true_places(mask: Tensor) -> list[int]:
    """The places where a mask is true, read in one copy from the device."""
    return [place for place, there in enumerate(mask.tolist()) if there]


def _pairs(counts: Tensor) -> Tensor:
    """Numbers (Q, 2) of pairs of two high documents, and of a high and a low one, from numbers of documents (2, Q)."""
    highs, lows = counts
    return torch.stack((highs * (highs - 1) / 2, highs * lows), 1)


# ---- lists with rows of their own ------------------------------------------------------------------------------------


class ListMoments(NamedTuple):
    """The high and low documents of the lists that have both, and what the sums need of these lists."""

    rows: Tensor  # (n, D) minus the mean of the high documents of their list
    lists: Tensor  # (n,)
    weights: Tensor  # (n, 2) how often the square of a row is in the similar and in the dissimilar scatter
    pairs: Tensor  # (Q, 2)
    means: Tensor  # (Q, 2, D)
    both: Tensor  # (Q,) 1 for a list with a high and a low document

    def add(self, times: Tensor, scatter: Tensor, weights: Tensor) -> None:
        """Add to the scatters (C, 2, D, D) the lists, each of them `times` (C, Q): one product of matrices for each."""
        for place in _true_places(times.any(1)):
            weighted = self.weights * times[place][self.lists, None]
            for into, weight in zip(scatter[place], weighted.unbind(1), strict=True):
                used = weight.nonzero().flatten()
                into.addmm_(self.rows[used].T, weight[used, None] * self.rows[used])


def list_moments(rows: Tensor, labels: Tensor, offsets: Tensor, high: str) -> ListMoments:
    """Moments of lists with rows (N, D) in float64.

    With A and B the high and the low rows minus the mean of the high ones, S = n+ A'A and D = n- A'A + n+ B'B, because
    the rows of A sum to 0.

    >>> rows, labels = torch.tensor([[1.0], [3.0], [0.0]]).double(), torch.tensor([1, 1, 0])
    >>> moments = list_moments(rows, labels, torch.tensor([0, 3]), "half")
    >>> (moments.weights * moments.rows.square()).sum(0), moments.pairs
    (tensor([ 4., 10.], dtype=torch.float64), tensor([[1., 2.]], dtype=torch.float64))
    """
    masks, ids = torch.stack(high_and_low(labels, offsets, high)), list_ids(offsets, len(labels))
    counts = torch.stack([segment_sum(mask.double(), offsets) for mask in masks])
    both = (counts > 0).all(0).double()
    sums = torch.stack([segment_sum(rows * mask[:, None], offsets) for mask in masks])
    means = sums / counts.clamp(min=1)[:, :, None]
    used = (masks.any(0) & (both[ids] > 0)).nonzero().flatten()
    lists, is_high = ids[used], masks[0, used].double()
    highs, lows = counts[:, lists]
    weights = torch.stack((is_high * highs, is_high * lows + (1 - is_high) * highs), 1)
    centred, pairs = rows[used].sub_(means[0, lists]), _pairs(counts) * both[:, None]
    return ListMoments(centred, lists, weights, pairs, means.transpose(0, 1) * both[:, None, None], both)


# ---- lists that hold a whole corpus ----------------------------------------------------------------------------------


def holds_corpus(lists: TrainingLists) -> bool:
    """Whether every list holds at least a quarter of a dense corpus that all share."""
    corpus = lists.corpus
    if corpus is None or isinstance(corpus, SparseRows) or not len(lists):
        return False
    return 4 * int(lists.lists.lengths.min()) >= len(corpus)


class CorpusMoments(NamedTuple):
    """What the sums need of lists that hold most of a corpus of n rows."""

    weights: Tensor  # (Q, 2, n) of the squares of corpus rows
    centred: Tensor  # (2, Q, D) mean of the high and of the low documents, relative to the centre of the corpus
    counts: Tensor  # (2, Q) high and low documents, 0 where a list has not both
    pairs: Tensor  # (Q, 2)
    means: Tensor  # (Q, 2, D)
    both: Tensor  # (Q,)

    def add(self, times: Tensor, scatter: Tensor, weights: Tensor) -> None:
        """Add the weights of the rows (C, 2, n), and subtract from the scatters what their squares are too much by."""
        weights += torch.einsum("cq,qkn->ckn", times, self.weights)
        (highs, lows), (high, low) = self.counts[:, :, None], self.centred
        for place in _true_places(times.any(1)):
            share = times[place][:, None]
            scatter[place, 0].addmm_(high.T, share * highs.square() * high, alpha=-1)
            mixed = high.T @ (share * highs * lows * low)
            scatter[place, 1] -= mixed + mixed.T


def corpus_moments(batch: Batch, rows: Tensor, centre: Tensor, high: str) -> CorpusMoments:
    """Moments of lists of a corpus, whose rows (n, D) are relative to their `centre`.

    S = sum of n+ h h' - n+^2 m+ m+' over the high documents h, and with the low documents l
    D = sum of n- h h' + sum of n+ l l' - n+ n- (m+ m-' + m- m+').
    """
    ids, masks = list_ids(batch.offsets, len(batch.labels)), high_and_low(batch.labels, batch.offsets, high)
    times = rows.new_zeros(2, batch.num_lists, len(rows))  # how often a row is a high, or a low, document of a list
    for kind, mask in zip(times, masks, strict=True):
        kind.index_put_((ids, batch.index), mask.double(), accumulate=True)
    both = (times.sum(2) > 0).all(0).double()
    times *= both[:, None]
    counts = times.sum(2)
    centred = times @ rows / counts.clamp(min=1)[:, :, None]
    (highs, lows), (is_high, is_low) = counts[:, :, None], times
    weights = torch.stack((highs * is_high, lows * is_high + highs * is_low), 1)
    means = (centred + centre).transpose(0, 1) * both[:, None, None]
    return CorpusMoments(weights, centred, counts, _pairs(counts), means, both)
