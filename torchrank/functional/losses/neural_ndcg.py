"""NeuralNDCG (Pobrotyn & Bialobrzeski 2021): NDCG of gains that a relaxed permutation matrix has sorted.

The rows of NeuralSort's matrix P (Grover et al. 2019) are softmax(((n + 1 - 2r) s_j - sum_k |s_j - s_k|) / T) at the
ranks r. Sinkhorn's scaling makes its columns sum to 1 as well. Here it finds two vectors, diag(u) P diag(v), in place
of new matrices, so that an iteration is two products with P and memory does not grow with the number of iterations.
Lists are processed in blocks, and torch differentiates each block by itself. Everything is in float64: the exponents
are differences of large numbers.
"""

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.autograd import OnceDifferentiable
from torchrank.functional.lists import Lists, Weighted, loss
from torchrank.functional.losses.pair_blocks import check_positive
from torchrank.functional.ranking import Gain, best_dcg, check_cutoff, check_gains, discount_of, gain_of, ratio

PLACES = 2**18  # entries of the matrices of a block: 2 MB
DEVICE = 32  # times as many on other devices
LEAST = 1e-10  # sums of rows and columns are at least that, as in allRank


@loss
def neural_ndcg_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    k: int | None = None,
    temperature: float = 1.0,
    gain: Gain = "exp2",
    iterations: int = 50,
    tolerance: float = 1e-6,
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """NeuralNDCG: minus the NDCG of the gains in the order of a relaxed sort of the scores (Pobrotyn et al. 2021).

    The value is that of allRank. A list of L entries takes O(L^2) time for each iteration, and O(L^2) memory.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the cut-off of NDCG; None counts the whole list.
        temperature: of NeuralSort; the lower, the closer to NDCG.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        iterations: most iterations of Sinkhorn's scaling.
        tolerance: the scaling of a list ends where no column sum is further from 1.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. Its gradient is in closed form and has no second
        derivative.

    Example:
        >>> neural_ndcg_loss(torch.tensor([0.5, 0.2]), torch.tensor([0, 1]), torch.tensor([0, 2]))
        tensor([-0.7880])
    """
    check_cutoff(k)
    check_positive(temperature=temperature, tolerance=tolerance, iterations=iterations)
    lists: Lists = offsets
    _LOSS.check_constant(labels=labels, weights=weights)
    check_gains(labels, gain, lists.grades)
    several = lists.several(labels)
    gains = gain_of(labels, gain) * (1 if weights is None else wide(weights))
    gains = gains * lists.each(ratio(wide(several), best_dcg(gains, lists, k), 0.0))
    floats = torch.where(lists.each(several), wide(scores), 0)
    options: Any = {"temperature": float(temperature), "iterations": iterations, "tolerance": float(tolerance)}
    return _outside_of_graphs(floats, gains, lists, k=k, **options)


def _sums(
    scores: Tensor,
    gains: Tensor,
    lists: Lists,
    weights: Tensor | None,
    order: int,
    *,
    k: int | None,
    temperature: float,
    iterations: int,
    tolerance: float,
) -> tuple[Tensor, ...]:
    """Minus the sum of discounts times relaxed gains of each list, `(Q,)`, and its gradient, `(N,)`."""
    total, gradient = scores.new_zeros(len(lists)), torch.zeros_like(scores)
    centred = scores - lists.each(lists.max(scores))  # a shift of the scores then loses no digits
    times = 1 if scores.device.type == "cpu" else DEVICE
    for block in lists.blocks(times * PLACES, few=times * PLACES // 8, rows=lists.bound):
        inside = torch.ones_like(block.entries, dtype=torch.bool) if block.inside is None else block.inside
        with torch.set_grad_enabled(order > 0):
            point = block.fill(centred, 0.0).requires_grad_(order > 0)
            matrix = _neural_sort(point, inside, temperature)
            u, v = _scaled(matrix, iterations, tolerance, block.inside)
            rank = torch.arange(1, point.shape[1] + 1, device=point.device)
            counted = inside if k is None else inside & (rank <= k)
            sorted_gains = u[:, 0] * (matrix @ (v * block.fill(gains, 0.0)[:, :, None]))[:, :, 0]
            values = -torch.where(counted, discount_of(rank) * sorted_gains, 0).sum(1)
            if order > 0:
                block.add(gradient, torch.autograd.grad(values.sum(), point)[0])
        total.index_copy_(0, block.lists, values.detach())
    return total, gradient


_LOSS = OnceDifferentiable("neural_ndcg_loss", _sums)


# an operation of a compiled graph cannot differentiate: here a graph is interrupted
_outside_of_graphs: Callable[..., Tensor] = torch.compiler.disable(
    lambda *tensors, **options: _LOSS(*tensors, **options)
)


def _neural_sort(scores: Tensor, inside: Tensor, temperature: float) -> Tensor:
    """The matrices `(B, L, L)` of B lists: a softmax over the entries of the list for each of its ranks."""
    lengths = wide(inside.sum(1))[:, None]
    spread = torch.where(inside[:, None], (scores[:, :, None] - scores[:, None]).abs(), 0).sum(2)
    factors = lengths + 1 - 2 * torch.arange(1, scores.shape[1] + 1, dtype=scores.dtype, device=scores.device)
    exponents = (factors[:, :, None] * scores[:, None] - spread[:, None]) / temperature
    shares = exponents.masked_fill(~inside[:, None], -torch.inf).softmax(2)
    return torch.where(inside[:, :, None], shares, 0)


def _scaled(matrix: Tensor, iterations: int, tolerance: float, inside: Tensor | None) -> tuple[Tensor, Tensor]:
    """Vectors u `(B, 1, L)` and v `(B, L, 1)` for which the columns and rows of diag(u) P diag(v) sum to 1. Beyond the
    end of a list, where P is 0, they mean nothing."""
    u, sums = torch.ones_like(matrix[:, :1]), matrix.sum(1, keepdim=True)
    v, active = u.mT, None
    for _ in range(iterations):
        new_v = sums.clamp(min=LEAST).reciprocal().mT
        new_u = (matrix @ new_v).clamp(min=LEAST).reciprocal().mT
        u, v = (new_u, new_v) if active is None else (torch.where(active, new_u, u), torch.where(active, new_v, v))
        sums = u @ matrix
        with torch.no_grad():
            error = (v.mT * sums).sub_(1).abs_()
            error = (error if inside is None else torch.where(inside[:, None], error, 0)).amax(2, keepdim=True)
            going = error >= tolerance if active is None else active & (error >= tolerance)
        known = host(going)
        if known is not None and not known.any():
            break
        active = None if known is not None and known.all() else going
    return u, v
