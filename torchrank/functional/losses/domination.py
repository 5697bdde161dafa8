"""Domination loss: one term per entry, for all entries together that it should be ranked above (Stevens 2010)."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, host, result_dtype, wide
from torchrank.functional.autograd import OnceDifferentiable, diagonal_of
from torchrank.functional.lists import MAX_GRADES, Lists, Weighted, loss

Margin = Tensor | Sequence[Sequence[float]] | None

RANGE = 0.7  # widest range of scores for plain exponentials, as a share of that in which exp does not overflow


@loss
def domination_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    margin: Margin = None,
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """Sum over the entries i of w_i log(1 + sum of exp(f_j - f_i + margin) over the j with a smaller label).

    Stevens 2010, eq. 5-7. O(N) for grades, O(N + Q K^2) with a matrix of margins, O(N log N) for real-valued labels.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        margin: None, a value s per entry `(N,)`, or a matrix `(K, K)`. With values the margin is s_i - s_j; s should
            not fall with the label. A matrix is indexed by the two labels; only the part below its diagonal counts.
        weights: importance w of each entry, `(N,)`, which multiplies its term; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`. Its gradient at the scores is in closed form.

    Example:
        >>> domination_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    scores, matrix = without_entry_margin(scores, margin)
    return _LOSS(scores, labels, offsets, weights, margin=matrix)


def domination_terms(scores: Tensor, labels: Tensor, lists: Lists, margin: Tensor | None = None) -> Tensor:
    """The terms of the entries, float64 `(N,)`: log(1 + sum of exp(f_j - f_i + margin) over j with a smaller label).

    >>> domination_terms(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), Lists.of([0, 2]))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    return _TERMS(scores, labels, lists, margin=margin)


class DominationGradient:
    """`domination_loss` and its gradient for solvers that evaluate them many times, in float64 and without a graph.
    What depends only on labels is computed once.

    >>> DominationGradient(torch.tensor([0, 1]), Lists.of([0, 2])).gradient(torch.tensor([1.0, 1.0]))
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """

    def __init__(self, labels: Tensor, lists: Lists, margin: Margin = None):
        self.lists, self.margin = lists, margin
        self._layers = _layers(labels, lists, without_entry_margin(labels, margin)[1])

    def gradient(self, scores: Tensor) -> Tensor:
        """The gradient at the scores, `(N,)`."""
        floats = without_entry_margin(wide(scores.detach()), self.margin)[0]
        return _gradient(torch.ones_like(floats), _masses(floats, self._layers), floats, self._layers)

    def loss_and_gradient(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each list, `(Q,)`, and its gradient at the scores, `(N,)`."""
        floats = without_entry_margin(wide(scores.detach()), self.margin)[0]
        masses = _masses(floats, self._layers)
        gradient = _gradient(torch.ones_like(floats), masses, floats, self._layers)
        return self.lists.sum(wide(_terms(floats, masses, self._layers))), gradient


def without_entry_margin(scores: Tensor, margin: Margin) -> tuple[Tensor, Tensor | None]:
    """The scores f - s if the margin is s_i - s_j, which is equivalent, and the margin if it is a matrix."""
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

    layer: Tensor  # (N,) number of the layer of each entry
    shape: tuple[int, int]  # Q, K
    margin: Tensor | None  # (K, K) between a grade and a smaller one

    def sum(self, values: Tensor) -> Tensor:
        """The sum of each layer, `(Q, K)`, in float64."""
        values = wide(values)
        total = values.new_zeros(self.shape[0] * self.shape[1])
        return total.scatter_add_(0, self.layer, values).view(self.shape)

    def max(self, scores: Tensor) -> Tensor:
        peak = scores.new_full((self.shape[0] * self.shape[1],), _lowest(scores))
        return peak.scatter_reduce(0, self.layer, scores, "amax").view(self.shape)

    def each(self, values: Tensor) -> Tensor:
        """`values (Q, K)` at the entries of each layer, `(N,)`."""
        return values.flatten().index_select(0, self.layer)

    def factors(self, like: Tensor) -> Tensor:
        """exp of the margin between a grade and each smaller one, `(K, K)`, and 0 elsewhere."""
        ones = like.new_ones(self.shape[1], self.shape[1])
        return (ones if self.margin is None else self.margin.exp()).tril(-1)


def _layers(labels: Tensor, lists: Lists, margin: Tensor | None) -> _Layers:
    if margin is not None:
        known = host(labels)
        if known is not None and labels.is_floating_point() and (known % 1 != 0).any():
            raise ValueError("a margin (K, K) needs integer labels, but these are real-valued: give one per entry")
        if known is not None and len(known) and known.max() >= len(margin):
            raise ValueError(
                f"margin is ({len(margin)}, {len(margin)}), but there are labels up to {known.max():g}: it needs a row "
                "and a column for each label"
            )
        levels, count = labels.long(), len(margin)
    else:
        levels, count = lists.levels(labels)
    return _Layers(torch.add(levels, lists.ids, alpha=count), (len(lists), count), margin)


def _sums(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, order: int, *, margin: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The loss of each list and its gradient."""
    layers, floats = _layers(labels, lists, margin), scores.to(result_dtype(scores))
    masses = _masses(floats, layers)
    terms = _terms(floats, masses, layers)
    paid = torch.ones_like(terms) if weights is None else weights.to(terms.dtype)
    loss = lists.sum(wide(terms if weights is None else terms * paid))
    return (loss,) if order == 0 else (loss, _gradient(paid, masses, floats, layers))


def _term_sums(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, order: int, *, margin: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    layers, floats = _layers(labels, lists, margin), scores.to(result_dtype(scores))
    masses = _masses(floats, layers)
    return wide(_terms(floats, masses, layers)), masses


def _terms_backward(
    upstream: Tensor,
    masses: Tensor,
    scores: Tensor,
    labels: Tensor,
    lists: Lists,
    weights: Tensor | None,
    *,
    margin: Tensor | None = None,
) -> Tensor:
    layers, floats = _layers(labels, lists, margin), scores.to(result_dtype(scores))
    masses = _masses(floats, layers) if masses.numel() == 0 else masses
    return _gradient(upstream.to(floats.dtype), masses, floats, layers)


_LOSS = OnceDifferentiable("domination_loss", _sums)
_TERMS = OnceDifferentiable("domination_terms", _term_sums, _terms_backward)


def _masses(scores: Tensor, layers: _Layers) -> Tensor:
    """E = exp(f) of each entry and Z_k, the sum of E (times exp of the margin) over the grades below its grade k, times
    a common factor, `(2, N)`; empty where no factor keeps them in the range of floats."""
    centre, dtype = _centre(scores, layers)
    if dtype is None:
        return scores.new_empty(0)
    mass = torch.sub(scores.to(dtype), centre).exp_()
    sums = layers.sum(mass)
    return torch.stack([mass, layers.each((sums @ layers.factors(sums).T).to(dtype))])


def _terms(scores: Tensor, masses: Tensor, layers: _Layers) -> Tensor:
    """The term of each entry, log(1 + Z_k / E_i), `(N,)`."""
    if masses.numel() == 0:
        return _log_terms(wide(scores), layers)[0]
    return (masses[1] / masses[0]).log1p_()


def _gradient(upstream: Tensor, masses: Tensor, scores: Tensor, layers: _Layers) -> Tensor:
    """The gradient at the scores of the sum of u_i times the term of entry i, `(N,)`.

    It is -u_i Z_k / (Z_k + E_i) at i, and u_i E_j / (Z_k + E_i) at every j below: together E_j C_m, where C_m is the
    sum of u_i / (Z_k + E_i) over all i of the grades k above m. Sums are in float64.
    """
    if masses.numel() == 0:
        return _log_gradient(wide(upstream), wide(scores), layers)
    mass, below = masses
    share = upstream.to(mass.dtype) / (below + mass)
    sums = layers.sum(share)
    return layers.each((sums @ layers.factors(sums)).to(mass.dtype)).mul_(mass).sub_(share.mul_(below))


def _centre(scores: Tensor, layers: _Layers) -> tuple[float, torch.dtype | None]:
    """The middle of the scores of the batch, and the dtype in which no exp of a difference over- or underflows: that of
    the scores, else float64, else None, as where scores cannot be read."""
    known = host(scores)
    if known is None or len(known) == 0 or layers.shape[1] > MAX_GRADES:
        return 0.0, None
    low, high = float(known.min()), float(known.max())
    spread = high - low + (0.0 if layers.margin is None else float(layers.margin.tril(-1).abs().amax()))
    fitting = [each for each in (scores.dtype, torch.float64) if spread < RANGE * math.log(torch.finfo(each).max)]
    return (low + high) / 2, fitting[0] if fitting else None


# for scores of any size: sums of exponentials are kept as `mass * exp(peak)`, the peak a score. Only differences of
# scores are formed, never of logarithms of sums, so that no digits are lost to the size of the scores


def _log_terms(scores: Tensor, layers: _Layers) -> tuple[Tensor, Tensor, Tensor]:
    """For each entry its term, the share Z_k / (Z_k + E_i), and its clamped score, all `(N,)`."""
    lowest = _lowest(scores)
    scores = scores.clamp(lowest, -lowest)
    peak = layers.max(scores)
    peak, mass = _lower(peak, layers.sum((scores - layers.each(peak)).exp_()), layers.margin)
    gap, below = layers.each(peak).sub_(scores), layers.each(mass)  # Z_k / E_i = below exp(gap), below >= 1 or all is 0
    over = gap.clamp(min=0)
    rise = gap.sub_(over).exp_().mul_(below)
    excess = torch.neg(over).expm1_().add_(rise)  # exp(-over) (1 + Z_k / E_i) - 1: small values stay exact
    return over.add_(excess.log1p()), rise.div_(excess.add_(1)), scores


def _log_gradient(upstream: Tensor, scores: Tensor, layers: _Layers) -> Tensor:
    _, lost, scores = _log_terms(scores, layers)
    lost = lost.mul_(upstream)
    lowest, peak = _lowest(scores), layers.max(scores)
    peak, mass = _lower(peak, layers.sum((scores - layers.each(peak)).exp_()), layers.margin)
    share = torch.where(mass > 0, layers.sum(lost) / mass, 0.0)
    peak, shares = _upper(torch.where(mass > 0, -peak, lowest), share, layers.margin)
    return layers.each(peak).add_(scores).exp_().mul_(layers.each(shares)).sub_(lost)


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
    """A number in place of -inf, whose differences would be nan; sums of a few of these stay finite."""
    return torch.finfo(values.dtype).min / 16


@diagonal_of(domination_loss)
def domination_diagonal(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, *, margin: Margin = None
) -> Tensor:
    """The diagonal of the second derivative of the sum of w_i times the term of entry i, `(N,)`.

    An entry i shares itself out among itself and the entries below it, as a softmax does: each share p adds p (1 - p).
    """
    scores, matrix = without_entry_margin(scores, margin)
    layers, weight = _layers(labels, lists, matrix), torch.ones_like(wide(scores)) if weights is None else wide(weights)
    terms, lost, floats = _log_terms(wide(scores), layers)
    rest = floats + terms  # the log of the sum that entry i shares out
    peak, total = layers.max(-rest), torch.zeros_like(floats)
    for n, sign in ((1, 1), (2, -1)):
        mass = layers.sum(weight * torch.exp(-n * (rest + layers.each(peak))))
        above, shares = _upper(n * peak, mass, None if matrix is None else n * matrix)
        total += sign * layers.each(shares) * torch.exp(layers.each(above) + n * floats)
    return total + weight * lost * (1 - lost)
