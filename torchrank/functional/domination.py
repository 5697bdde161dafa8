"""Domination loss: an entry pays for the sum of all entries of its list that it should dominate (Stevens 2010)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.gains import check_grades
from torchrank.functional.gradient import KnownGradient
from torchrank.functional.ragged import list_ids, longest_list, measure_sum, read, segment_min, wide
from torchrank.functional.ranking import check_lists, levels_of, result_dtype

Margin = Tensor | Sequence[Sequence[float]] | None

PRODUCT_RANGE = 600.0  # exp of half of it, either way, and sums of products of two such are far inside float64
LOWEST = -1e300  # stands for -inf, with which differences would be nan; sums of several stay finite


def domination_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: Margin = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Sum over the entries i of log(1 + sum of exp(f_j - f_i + margin) over the j of smaller label), `(Q,)`.

    Stevens 2010, eq. 5-7. `margin (N,)` is s(i) - s(j), a value s per entry, which should not fall with the label;
    `margin (K, K)` is that matrix at the two labels, of which only the part below the diagonal counts. O(N) for grades,
    O(N + Q K^2) with a matrix, O(N log N) for real-valued labels; the gradient is in closed form and has no second.

    >>> domination_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
    tensor([0.6931, 0.0000])
    """
    dtype = result_dtype(scores)
    scores, margin = _without_entry_margin(scores, margin)
    loss, slopes, ids = _solve(scores.detach(), labels, offsets, margin, max_length, num_grades)
    return KnownGradient.apply(scores, loss.to(dtype), slopes, ids)


def domination_slopes(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: Margin = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`domination_loss` in float64, `(Q,)`, and its slope at every score, `(N,)`, without a graph: for solvers.

    >>> domination_slopes(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))[1]
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    scores, margin = _without_entry_margin(scores.detach(), margin)
    return _solve(scores, labels, offsets, margin, max_length, num_grades)[:2]


def dominating(labels: Tensor, offsets: Tensor) -> Tensor:
    """Entries above the lowest label of their list, `(N,)`: those that have something to dominate.

    >>> dominating(torch.tensor([2, 1, 1, 0]), torch.tensor([0, 3, 4])).tolist()
    [True, False, False, False]
    """
    return labels > segment_min(labels, offsets).index_select(0, list_ids(offsets, len(labels)))


def _without_entry_margin(scores: Tensor, margin: Margin) -> tuple[Tensor, Tensor | None]:
    """A margin s(i) - s(j) is nothing but other scores: f - s for every entry. What is left is a matrix or None."""
    if margin is None:
        return scores, None
    precise = wide(scores)
    margin = torch.as_tensor(margin, dtype=precise.dtype, device=scores.device)
    if margin.shape == scores.shape:
        return precise - margin, None
    if margin.ndim != 2 or margin.shape[0] != margin.shape[1]:
        raise ValueError(
            f"margin has shape {tuple(margin.shape)}: give one value per entry, ({len(scores)},), or a square matrix "
            f"(K, K) indexed by the labels"
        )
    return scores, margin.detach()


class _Layers(NamedTuple):
    """Entries by list and grade. Layer q * K + k holds the entries of list q with grade k."""

    layer: Tensor  # (N,) number of each entry's layer
    shape: tuple[int, int]  # Q, K
    margin: Tensor | None  # (K, K) between a grade and a smaller one

    def sums(self, values: Tensor) -> Tensor:
        """Sum of each layer, `(Q, K)`."""
        total = values.new_zeros(self.shape[0] * self.shape[1])
        return total.scatter_add_(0, self.layer, values).view(self.shape)

    def each(self, values: Tensor) -> Tensor:
        """`values (Q, K)` at the entries of each layer, `(N,)`."""
        return values.flatten().index_select(0, self.layer)


def _solve(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    margin: Tensor | None,
    max_length: int | None,
    num_grades: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss per list, slope at every score and list of every entry."""
    check_lists(scores, labels, offsets)
    longest = longest_list(offsets, len(scores), max_length)
    if margin is not None:
        num_grades = _check_margin(margin, labels)
    levels, num_levels = levels_of(labels, offsets, longest=longest, num_grades=num_grades)
    ids, scores = list_ids(offsets, len(scores)), wide(scores)
    layers = _Layers(torch.add(levels, ids, alpha=num_levels), (len(offsets) - 1, num_levels), margin)
    centre = _centre(scores, margin)
    losses, slopes = _logarithms(scores, layers) if centre is None else _products(scores, layers, centre)
    return measure_sum(losses, offsets), slopes, ids


def _check_margin(margin: Tensor, labels: Tensor) -> int:
    if labels.device.type == "cpu" and labels.is_floating_point() and read((labels.frac() != 0).any()):
        raise ValueError("a margin (K, K) is indexed by the labels, and these are real-valued: give a margin per entry")
    check_grades(labels, len(margin))
    return len(margin)


def _centre(scores: Tensor, margin: Tensor | None) -> float | None:
    """Middle of the scores of the batch if exp of all differences is an ordinary number. Looks on CPU only."""
    if scores.device.type != "cpu" or len(scores) == 0:
        return None
    low, high = (read(bound) for bound in scores.aminmax())
    widest = 0.0 if margin is None else read(margin.tril(-1).abs().amax())
    return (low + high) / 2 if high - low + widest < PRODUCT_RANGE else None


def _products(scores: Tensor, layers: _Layers, centre: float) -> tuple[Tensor, Tensor]:
    """Loss and slope of every entry with exp(scores - centre) in float64: half the time of `_logarithms`.

    With E = exp(f) and Z_k the sum of E (times exp of the margin) over the grades below k, entry i of grade k pays
    log(1 + Z_k / E_i). Its slope is -Z_k / (Z_k + E_i), and E_j / (Z_k + E_i) at every j below: together E_j C_m, where
    C_m is the sum of 1 / (Z_k + E_i) over all i of the grades k above m. No sum has a negative term, so all is exact.
    """
    mass = torch.sub(scores, centre).exp_()
    below = layers.each(_sums_below(layers.sums(mass), layers.margin))
    share = (below + mass).reciprocal_()
    pull = layers.each(_sums_above(layers.sums(share), layers.margin))
    return (below / mass).log1p_(), pull.mul_(mass).sub_(share.mul_(below))


def _sums_below(sums: Tensor, margin: Tensor | None) -> Tensor:
    """Sum over the smaller grades of `sums (Q, K)`, times exp of the margin."""
    if margin is None:
        return torch.nn.functional.pad(sums[:, :-1].cumsum(1), (1, 0))
    return sums @ margin.exp().tril(-1).T


def _sums_above(sums: Tensor, margin: Tensor | None) -> Tensor:
    return _sums_below(sums.flip(1), None if margin is None else margin.T.flip(0, 1)).flip(1)


def _logarithms(scores: Tensor, layers: _Layers) -> tuple[Tensor, Tensor]:
    """`_products` for scores of any size: every sum of exponentials is `mass * exp(peak)` with a score as the peak.

    Only differences of scores are taken, never of their logarithms of sums, so no digits are lost to their size.
    """
    scores = scores.clamp(LOWEST, -LOWEST)
    peak = scores.new_full((layers.shape[0] * layers.shape[1],), LOWEST)
    peak = peak.scatter_reduce(0, layers.layer, scores, "amax").view(layers.shape)
    mass = layers.sums(torch.exp(scores - layers.each(peak)))
    peak, mass = _lower(peak, mass, layers.margin)
    gap, below = layers.each(peak) - scores, layers.each(mass)  # log of Z_k / E_i is gap + log(below)
    small, worse = torch.exp(-gap.abs()), gap > 0
    excess = torch.where(worse, below - 1 + small, below * small)  # worse: Z / E = exp(gap) below, where below >= 1
    losses = gap.clamp(min=0) + torch.log1p(excess)
    own = torch.where(worse, below, excess) / (1 + excess)
    share = torch.where(mass > 0, layers.sums(own) / mass, 0.0)
    peak, pull = _upper(torch.where(mass > 0, -peak, LOWEST), share, layers.margin)
    return losses, layers.each(pull) * torch.exp(scores + layers.each(peak)) - own


def _lower(peak: Tensor, mass: Tensor, margin: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums over the grades below each grade, as peaks and masses `(Q, K)`."""
    return _running(peak, mass) if margin is None else _mixed(peak, mass, margin)


def _upper(peak: Tensor, mass: Tensor, margin: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums over the grades above each grade: `_lower` with the grades in reverse."""
    peak, mass = _lower(peak.flip(1), mass.flip(1), None if margin is None else margin.T.flip(0, 1))
    return peak.flip(1), mass.flip(1)


def _mixed(peak: Tensor, mass: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    lower = torch.ones_like(margin).tril(-1) > 0
    terms = peak[:, None, :] + torch.where(lower, margin, LOWEST).clamp(min=LOWEST)  # (Q, K, K)
    peak = terms.amax(2)
    return peak, (torch.where(lower, mass[:, None, :], 0.0) * torch.exp(terms - peak[:, :, None])).sum(2)


def _running(peak: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """By doubling steps: log2(K) passes for any K."""
    step = 1
    peak, mass = _moved(peak, mass, step)
    while step < peak.shape[1]:
        before, gained = _moved(peak, mass, step)
        top = torch.maximum(peak, before)
        mass = mass * torch.exp(peak - top) + gained * torch.exp(before - top)
        peak, step = top, 2 * step
    return peak, mass


def _moved(peak: Tensor, mass: Tensor, step: int) -> tuple[Tensor, Tensor]:
    pad = torch.nn.functional.pad
    return pad(peak[:, :-step], (step, 0), value=LOWEST), pad(mass[:, :-step], (step, 0))
