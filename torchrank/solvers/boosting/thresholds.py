"""Rules x_f > theta for all features and thresholds at once, exact (every value of a feature) or binned."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

BLOCK = 2**20  # codes that are converted to int64 at once
ON_DEVICE = 2**27  # the same on a device, where a block must keep all cores busy


class Thresholds(NamedTuple):
    """Thresholds of each feature, and for each document how many of them it is not above.

    Document i is above threshold j of feature f where `codes[f, i] <= j`. So the sums over the documents above every
    threshold are the running sum of one histogram of the codes, however many distinct values there are.
    """

    edges: Tensor  # (D, M) descending; padded with -inf, which all values are above
    codes: Tensor  # (D, N) 0..M; uint8 if that suffices, else int32

    def sums(self, values: Tensor) -> Tensor:
        """Sum of `values` (N,) over the documents above each threshold, (D, M)."""
        width = self.edges.shape[1]
        found = values.new_zeros(len(self.codes), width + 1)
        step = max(1, (BLOCK if values.device.type == "cpu" else ON_DEVICE) // max(1, len(values)))
        for first in range(0, len(found), step):
            codes = self.codes[first : first + step].long()
            found[first : first + step].scatter_add_(1, codes, values.expand(len(codes), -1))
        return found[:, :width].cumsum(1)

    def above(self, feature: Tensor, place: Tensor) -> Tensor:
        """Which documents (N,) are above one threshold."""
        return self.codes.index_select(0, feature.view(1))[0] <= place  # an index () would wait for the device

    def places(self, feature: Tensor, threshold: Tensor) -> Tensor:
        """Columns (T,) of `edges` that hold the thresholds (T,) of these features."""
        return (self.edges[feature] > threshold[:, None]).sum(1)


def exact_edges(columns: Iterable[Tensor]) -> Tensor:
    """All distinct values of each feature but the largest, from D columns (N,), so that no rule is missed.

    >>> exact_edges(torch.tensor([[1.0, 3.0, 2.0, 3.0], [5.0, 5.0, 4.0, 5.0]]))
    tensor([[2., 1.],
            [4., -inf]])
    """
    return _table([column.unique()[:-1] for column in columns])


def binned_edges(sample: Tensor, bins: int) -> Tensor:
    """At most bins - 1 thresholds for each feature, from rows (n, D): its distinct values, evenly thinned out.

    Distinct values are thinned, not rows: half of a column of text features may be 0.

    >>> binned_edges(torch.tensor([[1.0], [2.0], [2.0], [4.0], [8.0]]), 3)
    tensor([[4., 1.]])
    """
    ordered, most = sample.T.contiguous().sort(1).values, bins - 1
    if not ordered.shape[1]:
        return ordered.new_full((len(ordered), 1), -torch.inf)
    new = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
    number = new.cumsum(1) - 1  # of each value among the distinct ones of its feature, (D, n)
    distinct = number[:, -1:] + 1
    width = int(distinct.clamp(max=most).max())
    steps = torch.arange(most, device=sample.device)[:width].flip(0)
    taken = torch.where(distinct > most, steps * distinct // most, steps - (width - distinct))  # -1, ...: none is left
    values = ordered.gather(1, torch.searchsorted(number, taken.clamp(min=0).contiguous()))
    return values.masked_fill(taken < 0, -torch.inf)


def _table(ascending: list[Tensor]) -> Tensor:
    """Thresholds (D, M), descending and padded with -inf; at least one column."""
    rows = [values.flip(0) for values in ascending]
    table = pad_sequence(rows, batch_first=True, padding_value=-torch.inf)
    return table if table.shape[1] else table.new_full((len(rows), 1), -torch.inf)


def encode(columns: Tensor, edges: Tensor) -> Thresholds:
    """The thresholds, with the codes of documents that are given as columns (D, N).

    >>> encode(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[2.0, 1.0]])).codes.tolist()
    [[2, 0, 1]]
    """
    below = torch.searchsorted(edges.flip(1), columns.to(edges.dtype).contiguous(), out_int32=True)
    return Thresholds(edges, (edges.shape[1] - below).to(_code_type(edges)))


def encode_rows(blocks: Iterable[Tensor], count: int, edges: Tensor) -> Thresholds:
    """`encode` for `count` documents that come as rows (n, D), block by block: nothing as large as the rows is made.

    >>> encode_rows([torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0]])], 3, torch.tensor([[2.0, 1.0]])).codes.tolist()
    [[2, 0, 1]]
    """
    codes, start = edges.new_empty(len(edges), count, dtype=_code_type(edges)), 0
    for rows in blocks:
        codes[:, start : start + len(rows)] = encode(rows.T, edges).codes
        start += len(rows)
    return Thresholds(edges, codes)


def _code_type(edges: Tensor) -> torch.dtype:
    return torch.uint8 if edges.shape[1] < 256 else torch.int32


def stump_scores(x: Tensor, feature: Tensor, threshold: Tensor, alpha: Tensor) -> Tensor:
    """Scores (N,) of rows (N, D): sum over t of alpha[t] where x[:, feature[t]] > threshold[t].

    The rules of one feature add up to a step function, so one search in its sorted thresholds replaces all its rules.

    >>> stump_scores(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), torch.tensor([2.0, 0.5]).double(),
    ...              torch.tensor([1.0, 0.25]).double())
    tensor([0.2500, 1.2500], dtype=torch.float64)
    """
    if not len(feature):
        return alpha.new_zeros(len(x))
    if len(feature) == 1:  # what a validation adds after a round, without reading anything from the device
        return torch.where(x[:, feature].to(threshold.dtype) <= threshold, 0.0, alpha)[:, 0]
    order = torch.argsort(threshold)
    order = order[torch.argsort(feature[order], stable=True)]
    used, sizes = torch.unique_consecutive(feature[order], return_counts=True)
    runs: list[int] = sizes.tolist()
    steps = pad_sequence(threshold[order].split(runs), batch_first=True, padding_value=torch.inf)
    heights = pad_sequence(alpha[order].split(runs), batch_first=True).cumsum(1)
    heights = torch.nn.functional.pad(heights, (1, 0))
    passed = torch.searchsorted(steps, x[:, used].T.to(steps.dtype).contiguous())
    return heights.gather(1, passed).sum(0)
