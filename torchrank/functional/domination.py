"""Domination loss: an entry pays for all entries of its list together that it should dominate (Stevens 2010)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.operations import ListLoss, one_operation, readable
from torchrank.functional.ragged import list_ids, measure_sum, read, wide
from torchrank.functional.ranking import check_lists, check_weights, levels_of, result_dtype

Margin = Tensor | Sequence[Sequence[float]] | None

PRODUCT_RANGE = 0.7  # widest range of scores for `_products`, as a share of the range in which exp does not overflow
PRODUCT_GRADES = 64  # largest number of grades for `_products`, which works on all pairs of grades


@takes_arrays
def domination_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: Margin = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Sum over the entries i of w_i log(1 + sum of exp(f_j - f_i + margin) over the j with a smaller label).

    Stevens 2010, eq. 5-7. O(N) for grades, O(N + Q K^2) with a matrix of margins, O(N log N) for real-valued labels.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        margin: None, a value s per entry `(N,)`, or a matrix `(K, K)`. With values the margin is s_i - s_j; s should
            not fall with the label. A matrix is indexed by the two labels; only the part below its diagonal counts.
        weights: importance w of each entry, `(N,)`, which multiplies its term; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form, and so is the second derivative.

    Example:
        >>> domination_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    dtype = result_dtype(scores)
    scores, margin = _without_entry_margin(scores, margin)
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    options = {"margin": margin, "max_length": max_length, "num_grades": num_grades}
    return _LOSS(scores, labels, offsets, weights, list_weights, **options).to(dtype)


def domination_slopes(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: Margin = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`domination_loss` in float64, `(Q,)`, and its slope at every score, `(N,)`, without a graph, for solvers.

    >>> domination_slopes(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))[1]
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    scores, margin = _without_entry_margin(wide(scores.detach()), margin)
    check_lists(scores, labels, offsets)
    return _solve(scores, labels, offsets, None, margin, max_length, num_grades)


def slopes_by_scores(
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: Margin = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Callable[[Tensor], Tensor]:
    """The slopes of `domination_slopes` as a function of the scores, for solvers that ask for them after each step:
    what depends on the labels alone is computed once.

    >>> slopes_by_scores(torch.tensor([0, 1]), torch.tensor([0, 2]))(torch.tensor([1.0, 1.0]))
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    check_lists(labels, labels, offsets)
    matrix = _without_entry_margin(labels, margin)[1]
    layers = _layers(labels, offsets, None, matrix, max_length, num_grades)
    return lambda scores: _entries(_without_entry_margin(wide(scores), margin)[0], layers, with_losses=False)[1]


def _without_entry_margin(scores: Tensor, margin: Margin) -> tuple[Tensor, Tensor | None]:
    """The scores f - s if the margin is s_i - s_j, which amounts to the same, and the margin if it is a matrix."""
    if margin is None:
        return scores, None
    precise = wide(scores)
    margin = torch.as_tensor(margin, dtype=precise.dtype, device=scores.device)
    if margin.shape == scores.shape:
        return precise - margin, None
    if margin.ndim != 2 or margin.shape[0] != margin.shape[1]:
        raise ValueError(
            f"margin must have one value per entry, ({len(scores)},), or be a square matrix (K, K) indexed by the "
            f"labels, got shape {tuple(margin.shape)}"
        )
    if margin.requires_grad:
        raise ValueError("a margin (K, K) is a constant and has no gradient: detach it, or learn a margin per entry")
    return scores, margin


class _Layers(NamedTuple):
    """Entries by list and grade. Layer q * K + k holds the entries of list q with grade k."""

    layer: Tensor  # (N,) number of each entry's layer
    shape: tuple[int, int]  # Q, K
    margin: Tensor | None  # (K, K) between a grade and a smaller one
    weights: Tensor | None  # (N,)

    def weighted(self, values: Tensor) -> Tensor:
        """`values (N,)` times the weights of the entries."""
        return values if self.weights is None else values * self.weights.to(values.dtype)

    def sums(self, values: Tensor) -> Tensor:
        """Sum of each layer, `(Q, K)`, in float64."""
        values = wide(values)
        total = values.new_zeros(self.shape[0] * self.shape[1])
        return total.scatter_add_(0, self.layer, values).view(self.shape)

    def masses(self, scores: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
        """Sums of exp(scores) of each layer, as peak and mass `(Q, K)`, and those of exp(scores) times each factor."""
        peak = scores.new_full((self.shape[0] * self.shape[1],), _lowest(scores))
        peak = peak.scatter_reduce(0, self.layer, scores, "amax").view(self.shape)
        terms = (scores - self.each(peak)).exp_()
        return peak, self.sums(terms), *(self.sums(terms * factor) for factor in factors)

    def each(self, values: Tensor) -> Tensor:
        """`values (Q, K)` at the entries of each layer, `(N,)`."""
        return values.flatten().index_select(0, self.layer)


def _layers(
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    margin: Tensor | None,
    max_length: int | None,
    num_grades: int | None,
) -> _Layers:
    if margin is not None:
        num_grades = _check_margin(margin, labels)
    levels, num_levels = levels_of(labels, offsets, max_length=max_length, num_grades=num_grades)
    numbers = torch.add(levels, list_ids(offsets, len(labels)), alpha=num_levels)
    return _Layers(numbers, (len(offsets) - 1, num_levels), margin, weights)


def _solve(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    margin: Tensor | None,
    max_length: int | None,
    num_grades: int | None,
) -> tuple[Tensor, Tensor]:
    """The loss `(Q,)` in float64, and the slope at every score `(N,)` in the dtype of the result."""
    layers = _layers(labels, offsets, weights, margin, max_length, num_grades)
    losses, slopes = _entries(scores.to(result_dtype(scores)), layers)
    return measure_sum(wide(losses), offsets), slopes


def _entries(scores: Tensor, layers: _Layers, *, with_losses: bool = True) -> tuple[Tensor, Tensor]:
    """Loss and slope of every entry; without losses the first means nothing."""
    centre, dtype = _centre(scores, layers.margin) if layers.shape[1] <= PRODUCT_GRADES else (0.0, None)
    if dtype is None:
        losses, slopes = _logarithms(wide(scores), layers)
    else:
        losses, slopes = _products(scores.to(dtype), layers, centre, with_losses)
    return losses, slopes.to(scores.dtype)


def _empty(scores: Tensor, labels: Tensor, offsets: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return wide(scores).new_empty(offsets.shape[0] - 1), scores.new_empty(scores.shape[0], dtype=result_dtype(scores))


_operation = one_operation("domination", _solve, _empty)


def domination_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    margin: Tensor | None,
    max_length: int | None,
    num_grades: int | None,
) -> tuple[Tensor, Tensor]:
    """The loss `(Q,)` of entries with weights `(N,)`, and its slopes `(N,)`: `sums` of a `ListLoss`."""
    return _operation(scores, labels, offsets, weights, margin, max_length, num_grades)


def domination_products(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    direction: Tensor,
    *,
    margin: Tensor | None,
    max_length: int | None,
    num_grades: int | None,
) -> Tensor:
    """The second derivative times a direction v, `(N,)` in float64, with sums as in `_logarithms`.

    An entry i shares itself out among itself and the entries below it, as a softmax does. With the mean m_i of v over
    these shares, each of them, times v - m_i, goes to its entry.
    """
    layers = _layers(labels, offsets, weights, margin, max_length, num_grades)
    v, lowest = wide(direction), _lowest(wide(scores))
    scores = wide(scores).clamp(lowest, -lowest)
    peak, mass, moved = layers.masses(scores, v)
    moved = _lower(peak, moved, margin)[1]
    peak, mass = _lower(peak, mass, margin)
    gap = layers.each(peak) - scores
    over = gap.clamp(min=0)
    own, below = torch.exp(-over), torch.exp(gap - over)
    total = own + below * layers.each(mass)
    mean = (own * v + below * layers.each(moved)) / total
    lost = layers.weighted(below * layers.each(mass) / total)
    share, tilted = (torch.where(mass > 0, layers.sums(part) / mass, 0.0) for part in (lost, lost * mean))
    peak = torch.where(mass > 0, -peak, lowest)
    tilted = _upper(peak, tilted, margin)[1]
    peak, share = _upper(peak, share, margin)
    pulled = torch.exp(layers.each(peak) + scores) * (v * layers.each(share) - layers.each(tilted))
    return pulled + layers.weighted(own / total) * (v - mean)


_LOSS = ListLoss("domination_loss", domination_sums, domination_products)


def _check_margin(margin: Tensor, labels: Tensor) -> int:
    if readable(labels) and labels.is_floating_point() and read((labels.frac() != 0).any()):
        raise ValueError("a margin (K, K) needs integer labels, but these are real-valued: give a margin per entry")
    return len(margin)


def _centre(scores: Tensor, margin: Tensor | None) -> tuple[float, torch.dtype | None]:
    """The middle of the scores of the batch, and the dtype in which no exp of a difference over- or underflows: that of
    the scores, else float64, else None. Scores are read only on CPU; elsewhere the dtype is None."""
    if not readable(scores) or len(scores) == 0:
        return 0.0, None
    low, high = (read(bound) for bound in scores.aminmax())
    spread = high - low + (0.0 if margin is None else read(margin.tril(-1).abs().amax()))
    fitting = (
        dtype for dtype in (scores.dtype, torch.float64) if spread < PRODUCT_RANGE * math.log(torch.finfo(dtype).max)
    )
    return (low + high) / 2, next(fitting, None)


def _products(scores: Tensor, layers: _Layers, centre: float, with_losses: bool) -> tuple[Tensor, Tensor]:
    """Loss and slope of every entry from exp(scores - centre), in a third of the time of `_logarithms`.

    With E = exp(f) and Z_k the sum of E (times exp of the margin) over the grades below k, entry i of grade k pays
    log(1 + Z_k / E_i). Its slope is -Z_k / (Z_k + E_i), and E_j / (Z_k + E_i) at every j below: together E_j C_m, where
    C_m is the sum of 1 / (Z_k + E_i) over all i of the grades k above m. What i pays and pulls is times its weight.
    Sums are in float64 without negative terms.
    """
    mass = torch.sub(scores, centre).exp_()
    sums = layers.sums(mass)
    factors = (sums.new_ones(2 * layers.shape[1:]) if layers.margin is None else layers.margin.exp()).tril(-1)
    below = layers.each((sums @ factors.T).to(mass.dtype))
    share = layers.weighted((below + mass).reciprocal_())
    pull = layers.each((layers.sums(share) @ factors).to(mass.dtype))
    slopes = pull.mul_(mass).sub_(share.mul_(below))
    return layers.weighted(below.div_(mass).log1p_()) if with_losses else below, slopes


def _logarithms(scores: Tensor, layers: _Layers) -> tuple[Tensor, Tensor]:
    """`_products` for scores of any size: every sum of exponentials is kept as `mass * exp(peak)`, the peak a score.

    Only differences of scores are formed, never of logarithms of sums, so no digits are lost to the size of the scores.
    """
    lowest = _lowest(scores)
    scores = scores.clamp(lowest, -lowest)
    peak, mass = layers.masses(scores)
    peak, mass = _lower(peak, mass, layers.margin)
    gap, below = layers.each(peak).sub_(scores), layers.each(mass)  # Z_k / E_i = below exp(gap), below >= 1 or all is 0
    over = gap.clamp(min=0)
    rise = gap.sub_(over).exp_().mul_(below)
    excess = torch.neg(over).expm1_().add_(rise)  # exp(-over) (1 + Z_k / E_i) - 1: small values stay exact
    losses = layers.weighted(over.add_(excess.log1p()))
    own = layers.weighted(rise.div_(excess.add_(1)))
    share = torch.where(mass > 0, layers.sums(own) / mass, 0.0)
    peak, pull = _upper(torch.where(mass > 0, -peak, lowest), share, layers.margin)
    return losses, layers.each(peak).add_(scores).exp_().mul_(layers.each(pull)).sub_(own)


def _lower(peak: Tensor, mass: Tensor, margin: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums over the grades below each grade, as peaks and masses `(Q, K)`."""
    return _running(peak, mass) if margin is None else _mixed(peak, mass, margin)


def _upper(peak: Tensor, mass: Tensor, margin: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums over the grades above each grade: `_lower` with the grades reversed."""
    peak, mass = _lower(peak.flip(1), mass.flip(1), None if margin is None else margin.T.flip(0, 1))
    return peak.flip(1), mass.flip(1)


def _mixed(peak: Tensor, mass: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """`_lower` with a margin for every pair of grades."""
    lower, lowest = torch.ones_like(margin).tril(-1) > 0, _lowest(peak)
    terms = torch.where(lower, peak[:, None, :] + margin.clamp(min=lowest), 2 * lowest)  # (Q, K, K)
    peak = terms.amax(2)
    return peak, (torch.where(lower, mass[:, None, :], 0.0) * torch.exp(terms - peak[:, :, None])).sum(2)


def _running(peak: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """`_lower` without margins, by doubling steps: log2(K) passes."""
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
    return pad(peak[:, :-step], (step, 0), value=_lowest(peak)), pad(mass[:, :-step], (step, 0))


def _lowest(values: Tensor) -> float:
    """Stands for -inf, whose differences would be nan; sums of a few of these stay finite."""
    return torch.finfo(values.dtype).min / 16
