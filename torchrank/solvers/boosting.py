"""Boosting of threshold rules x_f > theta on pairs of documents, for one model or for many models at once.

A pair is two documents of one list with different labels; the one with the larger label should win. The masses of pairs
under D(x0, x1) ~ exp(F(x0) - F(x1)) are computed in O(N + lists * levels), without enumerating pairs, and all sums of
exponentials from logarithms: where one rule ranks everything right, F grows without bound.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from torchrank.functional.lists import Lists
from torchrank.functional.ragged import cell_logsumexp, first_largest, lower_logsumexp, subsample, wide

CODES_AT_ONCE = 2**20  # codes that are converted to int64 at once
CODES_ON_DEVICE = 2**27  # the same on a device, where a block must keep all cores busy
PROJECTED_AT_ONCE = 2**23  # projected numbers held at once: 64 MB in float64
SAMPLE = 10_000  # rows from which thresholds are taken
LARGEST_R = 1 - 1e-10  # a rule that orders every pair right gets a finite weight
SMALLEST_R = 1e-8  # of a useful rule


# ---- masses of pairs ---------------------------------------------------------------------------------------------


class PairedLists(NamedTuple):
    """The documents of all lists with at least two different labels, in order."""

    cells: Tensor  # (N,) list * num_levels + level, of each document
    lists: Tensor  # (N,) list of each document
    pairs: Tensor  # (Q,) number of pairs of each list, float64
    num_levels: int


def paired_lists(labels: Tensor, offsets: Tensor, num_grades: int | None = None) -> PairedLists:
    """Cells and numbers of pairs of lists; real-valued labels (`num_grades` 0) are sorted into levels.

    >>> paired_lists(torch.tensor([0, 2, 1, 1]), torch.tensor([0, 4])).pairs
    tensor([5.], dtype=torch.float64)
    """
    lists = Lists(offsets, len(labels), grades=num_grades or None)
    levels, bound = lists.levels(labels)
    num_levels = int(levels.max()) + 1 if len(levels) and not num_grades else bound
    num_lists, ids = len(lists), lists.ids
    cells = ids * num_levels + levels
    counts = torch.bincount(cells, minlength=num_lists * num_levels).view(num_lists, num_levels).double()
    return PairedLists(cells, ids, (counts * (counts.cumsum(1) - counts)).sum(1), num_levels)


def pair_masses(scores: Tensor, log_weight: Tensor, paired: PairedLists) -> tuple[Tensor, Tensor]:
    """Mass (N,) of the pairs in which a document should win, and of those in which it should lose (Freund et al. 2003).

    A pair of list q has the mass exp(log_weight[q] + scores[loser] - scores[winner]). Scores may have several columns
    (N, M); then log_weight (Q, M) and the masses have them too.

    >>> paired = paired_lists(torch.tensor([0, 1, 1]), torch.tensor([0, 3]))
    >>> [mass.tolist() for mass in pair_masses(torch.zeros(3).double(), torch.zeros(1).double(), paired)]
    [[0.0, 1.0, 1.0], [2.0, 0.0, 0.0]]
    """
    weight = log_weight[paired.lists]
    won = torch.exp(weight - scores + _log_sum_below(scores, paired))
    lost = torch.exp(weight + scores + _log_sum_below(-scores, paired, above=True))
    return won, lost


def crossing_masses(scores: Tensor, chosen: Tensor, log_weight: Tensor, paired: PairedLists) -> Tensor:
    """Masses (2,) of the pairs of which only the winner is `chosen (N,)`, and of those of which only the loser is.

    >>> paired = paired_lists(torch.tensor([0, 1, 1]), torch.tensor([0, 3]))
    >>> crossing_masses(torch.zeros(3).double(), torch.tensor([False, True, False]), torch.zeros(1).double(), paired)
    tensor([1., 0.], dtype=torch.float64)
    """
    weight = log_weight[paired.lists] - scores
    masses = []
    for winners in (chosen, ~chosen):
        losers = _log_sum_below(scores.masked_fill(winners, -torch.inf), paired)
        masses.append(torch.exp(weight + losers).masked_fill(~winners, 0.0).sum())
    return torch.stack(masses)


def _log_sum_below(values: Tensor, paired: PairedLists, above: bool = False) -> Tensor:
    """Log (N,) of the sum of exp(values) over the documents of the same list at all lower (or higher) levels."""
    num_lists, num_levels = len(paired.pairs), paired.num_levels
    table = cell_logsumexp(values, paired.cells, num_lists * num_levels).unflatten(0, (num_lists, num_levels))
    sums = lower_logsumexp(table.flip(1)).flip(1) if above else lower_logsumexp(table)
    return sums.flatten(0, 1)[paired.cells]


# ---- thresholds --------------------------------------------------------------------------------------------------


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
        histogram = values.new_zeros(len(self.codes), width + 1)
        most = CODES_AT_ONCE if values.device.type == "cpu" else CODES_ON_DEVICE
        step = max(1, most // max(1, len(values)))
        for first in range(0, len(histogram), step):
            codes = self.codes[first : first + step].long()
            histogram[first : first + step].scatter_add_(1, codes, values.expand(len(codes), -1))
        return histogram[:, :width].cumsum(1)

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
    descending = [column.unique()[:-1].flip(0) for column in columns]
    edges = pad_sequence(descending, batch_first=True, padding_value=-torch.inf)
    return edges if edges.shape[1] else edges.new_full((len(edges), 1), -torch.inf)


def binned_edges(sample: Tensor, bins: int) -> Tensor:
    """At most bins - 1 thresholds for each feature, from rows (n, D): its distinct values, evenly thinned out.

    Distinct values are thinned, not rows: half of a column of text features may be 0.

    >>> binned_edges(torch.tensor([[1.0], [2.0], [2.0], [4.0], [8.0]]), 3)
    tensor([[4., 1.]])
    """
    ordered, most = sample.T.contiguous().sort(1).values, bins - 1
    if not ordered.shape[1]:
        return ordered.new_full((len(ordered), 1), -torch.inf)
    new = pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
    number = new.cumsum(1) - 1  # of each value among the distinct ones of its feature, (D, n)
    distinct = number[:, -1:] + 1
    width = int(distinct.clamp(max=most).max())
    steps = torch.arange(most, device=sample.device)[:width].flip(0)
    taken = torch.where(distinct > most, steps * distinct // most, steps - (width - distinct))  # -1, ...: none is left
    values = ordered.gather(1, torch.searchsorted(number, taken.clamp(min=0).contiguous()))
    return values.masked_fill(taken < 0, -torch.inf)


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


# ---- many models at once -----------------------------------------------------------------------------------------


class Rules(NamedTuple):
    """Rules of M models: F_m(z) = sum over t of alpha[m, t] where z[feature[m, t]] > threshold[m, t]."""

    feature: Tensor  # (M, T)
    threshold: Tensor  # (M, T)
    alpha: Tensor  # (M, T), 0 where no rule was useful


def boost_many(
    x: Tensor, labels: Tensor, offsets: Tensor, basis: Tensor, *, rounds: int = 100, bins: int = 256, seed: int = 0
) -> Rules:
    """Rules on the features U_m x of each model, `basis (M, P, D)`; every list must have two different labels.

    Each model is the one that the ranker `RankBoost` finds in `rounds` rounds, with its default options, on lists with
    these features.

    >>> x, labels = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1, 2])
    >>> rules = boost_many(x, labels, torch.tensor([0, 3]), torch.eye(2)[None], rounds=1)
    >>> rules.feature, rules.threshold
    (tensor([[0]]), tensor([[1.]], dtype=torch.float64))
    """
    paired = paired_lists(labels, offsets)
    sample = subsample(len(x), SAMPLE, seed).to(x.device)
    step = max(1, PROJECTED_AT_ONCE // max(1, basis.shape[1] * len(x)))
    rules = []
    for models in basis.split(step):
        columns = (wide(models).flatten(0, 1) @ wide(x).T).contiguous()  # (M P, N)
        thresholds = encode(columns, binned_edges(columns[:, sample].T, bins))
        rules.append(_boost(thresholds, paired, len(models), rounds))
    return _joined(rules, 0)


def _joined(rules: list[Rules], dim: int) -> Rules:
    return Rules(*(torch.cat(parts, dim) for parts in zip(*rules, strict=True)))


def _boost(thresholds: Thresholds, paired: PairedLists, num_models: int, rounds: int) -> Rules:
    """`rounds` rules for each model, whose features follow each other in `thresholds (M P, ...)`."""
    edges, codes = thresholds
    num_features, width = len(codes) // max(1, num_models), edges.shape[1]
    first_weight = -paired.pairs.sum().log().expand(len(paired.pairs), num_models)
    scores = first_weight.new_zeros(codes.shape[1], num_models)
    log_loss, models = scores.new_zeros(num_models), torch.arange(num_models, device=codes.device)
    rules = []
    for _ in range(rounds):
        won, lost = pair_masses(scores, first_weight - log_loss, paired)
        mass = won.sum(0)
        log_loss = log_loss + mass.log()
        potentials = won.sub_(lost).div_(mass).T.repeat_interleave(num_features, 0)  # (M P, N)
        histogram = scores.new_zeros(len(codes), width + 1).scatter_add_(1, codes.long(), potentials)
        r_of_rules = histogram[:, :width].cumsum(1).view(num_models, -1)
        best = first_largest(r_of_rules.abs(), dim=1)
        r, feature, place = r_of_rules[models, best], best // width, best % width
        alpha = torch.where(r.abs() < SMALLEST_R, 0.0, torch.atanh(r.clamp(-LARGEST_R, LARGEST_R)))
        row = models * num_features + feature
        scores += ((codes[row] <= place[:, None]) * alpha[:, None]).T
        rules.append(Rules(feature[:, None], edges[row, place][:, None], alpha[:, None]))
    return _joined(rules, 1)
