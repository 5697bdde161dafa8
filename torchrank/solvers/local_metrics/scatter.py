"""Sums over pairs of high and low documents, as products of matrices: no pair is formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.data.training import TrainingLists
from torchrank.functional.ragged import list_ids, segment_sum
from torchrank.solvers.local_metrics.sources import high_and_low


class Moments(NamedTuple):
    """The high and low documents of the lists that have both, and what the sums need of these lists."""

    rows: Tensor  # (n, D) minus the mean of the high documents of their list
    lists: Tensor  # (n,)
    weights: Tensor  # (n, 2) how often the square of a row is in the similar and in the dissimilar scatter
    pairs: Tensor  # (Q, 2)
    means: Tensor  # (Q, 2, D)
    both: Tensor  # (Q,) 1 for a list with a high and a low document


def moments(rows: Tensor, labels: Tensor, offsets: Tensor, high: str) -> Moments:
    """Moments of lists with rows (N, D) in float64.

    With A and B the high and the low rows minus the mean of the high ones, S = n+ A'A and D = n- A'A + n+ B'B, because
    the rows of A sum to 0.

    >>> rows, labels = torch.tensor([[1.0], [3.0], [0.0]]).double(), torch.tensor([1, 1, 0])
    >>> found = moments(rows, labels, torch.tensor([0, 3]), "half")
    >>> (found.weights * found.rows.square()).sum(0), found.pairs
    (tensor([ 4., 10.], dtype=torch.float64), tensor([[1., 2.]], dtype=torch.float64))
    """
    masks, ids = high_and_low(labels, offsets, high), list_ids(offsets, len(labels))
    highs, lows = (segment_sum(mask.double(), offsets) for mask in masks)
    both = ((highs > 0) & (lows > 0)).double()
    means = [
        segment_sum(rows * mask[:, None], offsets) / number.clamp(min=1)[:, None]
        for mask, number in zip(masks, (highs, lows), strict=True)
    ]
    used = ((masks[0] | masks[1]) & (both[ids] > 0)).nonzero().flatten()
    where, is_high = ids[used], masks[0][used].double()
    weights = torch.stack((is_high * highs[where], is_high * lows[where] + (1 - is_high) * highs[where]), 1)
    centred = rows[used].sub_(means[0][where])
    return Moments(
        centred, where, weights, _pairs(highs, lows, both), torch.stack(means, 1) * both[:, None, None], both
    )


def _pairs(highs: Tensor, lows: Tensor, both: Tensor) -> Tensor:
    """Numbers (Q, 2) of pairs of two high documents, and of a high and a low one."""
    return torch.stack((highs * (highs - 1) / 2, highs * lows), 1) * both[:, None]


def add_scatter(rows: Tensor, weights: Tensor, similar: Tensor, dissimilar: Tensor) -> None:
    """Add the squares of rows (n, D), weighted by (n, 2), to both scatters (D, D): one product of matrices each."""
    high = weights[:, 0].nonzero().flatten()
    similar.addmm_(rows[high].T, weights[high, :1] * rows[high])
    dissimilar.addmm_(rows.T, weights[:, 1:] * rows)


# ---- lists that hold a whole corpus ----------------------------------------------------------------------------------


def holds_corpus(lists: TrainingLists) -> bool:
    """Whether every list holds at least a quarter of a dense corpus that all share."""
    corpus = lists.corpus
    if corpus is None or isinstance(corpus, SparseRows) or not len(lists):
        return False
    return 4 * int(lists.lists.lengths.min()) >= len(corpus)


def corpus_sums(lists: TrainingLists, shares: Sequence[Tensor], high: str) -> list[tuple[Tensor, ...]]:
    """Sums over lists that hold most of a corpus: `shares` (C, Q) say how often each list counts in each of C sums.

    The weights of a corpus row add up over the lists, so that the squares of rows are summed once, whatever the number
    of lists: S = sum of n+ h h' - n+^2 m+ m+' over the high documents, and D = sum of n- h h' + sum of n+ l l'
    - n+ n- (m+ m-' + m- m+'). Rows are taken relative to the mean of the corpus.

    Returns:
        For each of the shares both scatters (C, D, D), numbers of pairs (C, 2), means of the high and the low documents
        summed over the lists (C, 2, D), and the number of lists (C,).
    """
    corpus: Tensor = lists.corpus.double()  # type: ignore[union-attr]
    centre = corpus.mean(0)
    rows, (size, width) = corpus - centre, corpus.shape
    shapes = [((c, 2, size), (c, 2, width, width), (c, 2), (c, 2, width), (c,)) for c in map(len, shares)]
    into = tuple(lists.zeros(*shape) for row in shapes for shape in row)

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        found = _corpus_moments(batch, rows, centre, high)
        for place, share in enumerate(shares):
            _add_shares(found, share[:, batch.query], into[5 * place : 5 * place + 5])

    summed = lists.total(add, into)
    return [_scattered(rows, *summed[5 * place : 5 * place + 5]) for place in range(len(shares))]


class _CorpusMoments(NamedTuple):
    weights: Tensor  # (Q, 2, n) of the squares of corpus rows
    centred: Tensor  # (2, Q, D) mean of the high and of the low documents, relative to the centre
    counts: Tensor  # (2, Q) high and low documents, 0 where a list has not both
    pairs: Tensor  # (Q, 2)
    means: Tensor  # (Q, 2, D)
    both: Tensor  # (Q,)


def _corpus_moments(batch: Batch, rows: Tensor, centre: Tensor, high: str) -> _CorpusMoments:
    ids, found = list_ids(batch.offsets, len(batch.labels)), rows.new_zeros(2, batch.num_lists, len(rows))
    for kind, mask in zip(found, high_and_low(batch.labels, batch.offsets, high), strict=True):
        kind.index_put_((ids, batch.index), mask.double(), accumulate=True)
    both = (found.sum(2) > 0).all(0).double()
    found *= both[:, None]
    counts = found.sum(2)
    centred = found @ rows / counts.clamp(min=1)[:, :, None]
    (highs, lows), (is_high, is_low) = counts[:, :, None], found
    weights = torch.stack((highs * is_high, lows * is_high + highs * is_low), 1)
    means = (centred + centre).transpose(0, 1) * both[:, None, None]
    return _CorpusMoments(weights, centred, counts, _pairs(counts[0], counts[1], both), means, both)


def _add_shares(found: _CorpusMoments, share: Tensor, into: tuple[Tensor, ...]) -> None:
    """Add the lists of a batch, of which each counts `share (C, Q)` times."""
    weights, products, pairs, means, lists = into
    weights += torch.einsum("cq,qkn->ckn", share, found.weights)
    pairs += share @ found.pairs
    means += torch.einsum("cq,qkd->ckd", share, found.means)
    lists += share @ found.both
    (highs, lows), (high, low) = found.counts[:, :, None], found.centred
    for cell in share.any(1).nonzero().flatten().tolist():
        own = share[cell][:, None]
        products[cell, 0].addmm_(high.T, own * highs.square() * high)
        mixed = high.T @ (own * highs * lows * low)
        products[cell, 1] += mixed + mixed.T


def _scattered(
    rows: Tensor, weights: Tensor, products: Tensor, pairs: Tensor, means: Tensor, lists: Tensor
) -> tuple[Tensor, ...]:
    scatters = [torch.stack([rows.T @ (weight[:, None] * rows) for weight in kind]) for kind in weights.unbind(1)]
    similar, dissimilar = (all_of - product for all_of, product in zip(scatters, products.unbind(1), strict=True))
    return similar, dissimilar, pairs, means, lists
