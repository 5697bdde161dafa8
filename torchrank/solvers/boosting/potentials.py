"""Masses of pairs under D(x0, x1) ~ exp(F(x0) - F(x1)) in O(N + lists * levels), without enumerating the pairs.

A pair is two documents of one list with different labels; the one with the larger label should win. All sums of
exponentials are computed from logarithms: where one rule ranks everything right, F grows without bound.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.ragged import list_ids
from torchrank.functional.ranking import levels_of


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
    levels, bound = levels_of(labels, offsets, max_length=None, num_grades=num_grades)
    num_levels = int(levels.max()) + 1 if len(levels) and not num_grades else bound
    num_lists, ids = len(offsets) - 1, list_ids(offsets, len(labels))
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
    won = torch.exp(weight - scores + _log_below(scores, paired))
    lost = torch.exp(weight + scores + _log_below(-scores, paired, above=True))
    return won, lost


def crossing_masses(scores: Tensor, chosen: Tensor, log_weight: Tensor, paired: PairedLists) -> Tensor:
    """Masses (2,) of the pairs of which only the winner is `chosen (N,)`, and of those of which only the loser is.

    >>> paired = paired_lists(torch.tensor([0, 1, 1]), torch.tensor([0, 3]))
    >>> crossing_masses(torch.zeros(3).double(), torch.tensor([False, True, False]), torch.zeros(1).double(), paired)
    tensor([1., 0.], dtype=torch.float64)
    """
    weight = log_weight[paired.lists] - scores
    masses = []
    for here in (chosen, ~chosen):
        losers = _log_below(scores.masked_fill(here, -torch.inf), paired)
        masses.append(torch.exp(weight + losers).masked_fill(~here, 0.0).sum())
    return torch.stack(masses)


def _log_below(values: Tensor, paired: PairedLists, above: bool = False) -> Tensor:
    """Log (N,) of the sum of exp(values) over the documents of the same list at all lower (or higher) levels."""
    shape, columns = (len(paired.pairs), paired.num_levels), values.shape[1:]
    places = paired.cells if not columns else paired.cells[:, None].expand_as(values)
    peak = values.new_full((shape[0] * shape[1], *columns), -torch.inf).scatter_reduce(0, places, values, "amax")
    peak = peak.masked_fill(peak.isinf(), 0.0)  # avoids -inf - -inf = nan
    sums = torch.zeros_like(peak).index_add_(0, paired.cells, torch.exp(values - peak[paired.cells]))
    table = (sums.log() + peak).view(*shape, *columns)
    running = (table.flip(1) if above else table).logcumsumexp(1)
    before = torch.cat([running.new_full((shape[0], 1, *columns), -torch.inf), running[:, :-1]], 1)
    return (before.flip(1) if above else before).flatten(0, 1)[paired.cells]
