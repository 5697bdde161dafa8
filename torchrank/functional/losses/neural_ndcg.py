"""NeuralNDCG (Pobrotyn & Bialobrzeski 2021): NDCG of gains that a relaxed permutation matrix has sorted.

The rows of NeuralSort's matrix P (Grover et al. 2019) are softmax(((n + 1 - 2r) s_j - sum_k |s_j - s_k|) / T) at the
ranks r. Sinkhorn's scaling makes its columns sum to 1 as well. Here it finds two vectors, diag(u) P diag(v), in place
of new matrices, so that an iteration is two products with P, and the slopes of all iterations are known from the
vectors: memory does not grow with the number of iterations. A P that is too large to keep is computed again strip by
strip.
Everything is in float64: the exponents are differences of large numbers.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.batching import pair_blocks
from torchrank.functional.gains import Gain, check_gains, dcg, gain_of
from torchrank.functional.losses.soft_ranks import check_positive, read_longest
from torchrank.functional.operations import ListLoss, empty_sums, one_operation, readable
from torchrank.functional.ragged import has_pairs, per_entry, read, segment_max, sort_within, wide
from torchrank.functional.ranking import check_cutoff, check_lists, check_weights, count_grades, ratio

BLOCK_PAIRS = 2**18  # entries of the matrices of a block: 2 MB
DEVICE_PAIRS = 2**23  # the same on other devices
KEPT_PAIRS = 2**24  # entries of a matrix that is kept: 128 MB
LEAST = 1e-10  # sums of rows and columns are at least that, as in allRank


@takes_arrays
def neural_ndcg_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    temperature: float = 1.0,
    gain: Gain = "exp2",
    iterations: int = 50,
    tolerance: float = 1e-6,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """NeuralNDCG: minus the NDCG of the gains in the order of a relaxed sort of the scores (Pobrotyn et al. 2021).

    The value is that of allRank. A list of L entries takes O(L^2) time for each iteration and bounded memory.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the cut-off of NDCG; None counts the whole list.
        temperature: of NeuralSort; the lower, the closer to NDCG.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        iterations: most iterations of Sinkhorn's scaling.
        tolerance: the scaling of a list ends where no column sum is further from 1.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. Its gradient is in closed form and has no second
        derivative.

    Example:
        >>> neural_ndcg_loss(torch.tensor([0.5, 0.2]), torch.tensor([0, 1]), torch.tensor([0, 2]))
        tensor([-0.7880])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores=scores, offsets=offsets, weights=weights, list_weights=list_weights)
    check_cutoff(k)
    check_positive(temperature=temperature, tolerance=tolerance, iterations=iterations)
    check_gains(labels, gain, count_grades(labels, num_grades))
    longest = read_longest(offsets, len(scores), max_length)
    options = {"temperature": float(temperature), "iterations": iterations, "tolerance": float(tolerance)}
    return _LOSS(scores, labels, offsets, weights, list_weights, k=k, gain=gain, longest=longest, **options)


def _sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    k: int | None,
    gain: Gain,
    longest: int,
    temperature: float,
    iterations: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    several = has_pairs(labels, offsets)
    taught = per_entry(several, offsets, len(scores))
    gains = gain_of(labels, gain) * (1 if weights is None else wide(weights))
    best = gains[sort_within(gains, offsets)]
    (ideal,) = dcg(best, offsets, cutoffs=[k], gain="linear", discount="log2p1", longest=longest)
    gains = gains * per_entry(ratio(wide(several), ideal, 0.0), offsets, len(scores))
    own = torch.where(taught, wide(scores), 0)
    return _operation(own, gains, offsets, k or 0, temperature, iterations, tolerance, longest)


_LOSS = ListLoss("neural_ndcg_loss", _sums)


def _neural_sums(
    scores: Tensor,
    gains: Tensor,
    offsets: Tensor,
    k: int,
    temperature: float,
    iterations: int,
    tolerance: float,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Minus the sum of discounts times relaxed gains of each list, `(Q,)`, and its slopes, `(N,)`."""
    loss, slopes = scores.new_zeros(len(offsets) - 1), torch.zeros_like(scores)
    peak = segment_max(scores, offsets)
    own = scores - per_entry(peak, offsets, len(scores))  # the digits behind the point count
    blocks = (
        pair_blocks(offsets, BLOCK_PAIRS, few=BLOCK_PAIRS // 8) if readable(scores) else equal_blocks(offsets, longest)
    )
    for lists, entries, inside in blocks:
        sort = _Sort.of(own[entries], inside, temperature)
        value, slope = _ndcg(sort, torch.where(inside, gains[entries], 0), k, iterations, tolerance)
        loss.index_copy_(0, lists, -value)
        slopes.index_add_(0, entries.flatten(), torch.where(inside, -slope, 0).flatten())
    return loss, slopes


_operation = one_operation("neural_ndcg", _neural_sums, empty_sums)


def equal_blocks(offsets: Tensor, longest: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """`pair_blocks` without reading the lengths."""
    count, place = len(offsets) - 1, torch.arange(longest, device=offsets.device)
    step = max(1, DEVICE_PAIRS // max(longest, 1) ** 2)
    for begin in range(0, count if longest else 0, step):
        lists = torch.arange(begin, min(begin + step, count), device=offsets.device)
        first, last = offsets[lists, None], offsets[lists + 1, None] - 1
        entries = first + place
        yield lists, torch.minimum(entries, last).clamp(min=0), entries <= last


class _Sort(NamedTuple):
    """NeuralSort's matrices of B lists, padded to L entries."""

    scores: Tensor  # (B, L)
    inside: Tensor  # (B, L)
    spread: Tensor  # (B, L) the sum of the distances to the other scores
    factors: Tensor  # (B, L) n + 1 - 2r at each rank r
    temperature: float
    kept: list[Tensor]  # the strips, if there is room for them

    @classmethod
    def of(cls, scores: Tensor, inside: Tensor, temperature: float) -> "_Sort":
        rank = torch.arange(1, scores.shape[1] + 1, device=scores.device)
        factors = (inside.sum(1, keepdim=True) + 1 - 2 * rank).to(scores.dtype)
        spread = torch.zeros_like(scores)
        for rows in _strips(scores):
            apart = (scores[:, rows, None] - scores[:, None]).abs_()
            spread[:, rows] = torch.where(inside[:, None], apart, 0).sum(2)
        sort = cls(scores, inside, spread, factors, temperature, [])
        if scores.numel() * scores.shape[1] <= KEPT_PAIRS:
            sort.kept.extend(sort.strip(rows) for rows in _strips(scores))
        return sort

    def strip(self, rows: slice) -> Tensor:
        """Some rows of the matrices, `(B, rows, L)`."""
        exponents = self.factors[:, rows, None] * self.scores[:, None]
        exponents.sub_(self.spread[:, None]).div_(self.temperature)
        shares = exponents.masked_fill_(~self.inside[:, None], -torch.inf).softmax(2)
        return torch.where(self.inside[:, rows, None], shares, 0)

    def strips(self) -> Iterator[tuple[slice, Tensor]]:
        for place, rows in enumerate(_strips(self.scores)):
            yield rows, self.kept[place] if self.kept else self.strip(rows)

    def sweep(self, right: Tensor, then: Callable[[Tensor, slice], Tensor]) -> tuple[Tensor, Tensor]:
        """`then` of P right, `(B, L)` or `(B, L, m)`, and P' times it, in one pass over the rows."""
        parts, total = [], torch.zeros((), dtype=right.dtype, device=right.device)
        for rows, shares in self.strips():
            parts.append(then((shares @ right[:, :, None])[:, :, 0], rows))
            flat = parts[-1].ndim == 2
            found = shares.mT @ (parts[-1][:, :, None] if flat else parts[-1])
            total = total + (found[:, :, 0] if flat else found)
        return torch.cat(parts, 1), total


def _strips(scores: Tensor) -> Iterator[slice]:
    """Rows of the matrices that are worked on at a time: all, but for a list that is longer than a block allows."""
    lists, longest = scores.shape
    step = max(1, (BLOCK_PAIRS if readable(scores) else DEVICE_PAIRS) // max(lists * longest, 1))
    return (slice(begin, begin + step) for begin in range(0, longest, step))


def _inverse(sums: Tensor, inside: Tensor) -> Tensor:
    return torch.where(inside, 1 / sums.clamp(min=LEAST), 0)


def _ndcg(sort: _Sort, gains: Tensor, k: int, iterations: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """The NDCG of B lists, `(B,)`, and its slopes, `(B, L)`."""
    rank = torch.arange(1, gains.shape[1] + 1, device=gains.device)
    counted = sort.inside & (rank <= k) if k else sort.inside
    discounts = torch.where(counted, 1 / torch.log2(1 + rank.to(gains.dtype)), 0)
    steps = _scale(sort, iterations, tolerance)
    u, v, _ = steps[-1]

    def last(gained: Tensor, rows: slice) -> Tensor:
        pulled = discounts[:, rows] * gained
        return torch.stack([discounts[:, rows] * u[:, rows], pulled, -pulled * _square(u[:, rows])], 2)

    found, pulls = sort.sweep(v * gains, last)
    value = (found[:, :, 1] * u).sum(1)
    lefts, rights = [found[:, :, 0]], [v * gains]
    if len(steps) > 1:
        lefts, rights = [*lefts, found[:, :, 2]], [*rights, v]
        _unscale(sort, steps, gains * pulls[:, :, 0] + pulls[:, :, 2], lefts, rights)
    return value, _at_scores(sort, torch.stack(lefts, 2), torch.stack(rights, 2))


def _square(inverse: Tensor) -> Tensor:
    """The slope of a sum's inverse, but for its sign; 0 where the sum was too small."""
    return torch.where(inverse < 1 / LEAST, inverse.square(), 0)


Step = tuple[Tensor, Tensor, Tensor]  # u, v (B, L), and which lists took the step (B, 1)


def _scale(sort: _Sort, iterations: int, tolerance: float) -> list[Step]:
    """The vectors after each iteration, from those before the first one: columns sum to 1, then rows do."""
    ones = torch.where(sort.inside, 1.0, torch.zeros_like(sort.scores))
    u, v, active = ones, ones, torch.ones_like(sort.inside[:, :1])
    steps = [(u, v, active)]
    _, sums = sort.sweep(ones, lambda found, rows: ones[:, rows])
    for _ in range(iterations):
        v = torch.where(active, _inverse(sums, sort.inside), v)
        inverse, sums = sort.sweep(v, lambda found, rows: _inverse(found, sort.inside[:, rows]))
        u = torch.where(active, inverse, u)
        steps.append((u, v, active))
        error = torch.where(sort.inside, (v * sums - 1).abs(), 0).amax(1, keepdim=True)
        active = active & ~(error < tolerance)
        if readable(active) and not read(active.any()):
            break
    return steps


def _unscale(sort: _Sort, steps: list[Step], at_v: Tensor, lefts: list[Tensor], rights: list[Tensor]) -> None:
    """Goes back through the iterations and adds what each of them pulls at P, a sum of products left right'."""
    for (before, v_before, _), (_, v, active) in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
        at_sums = torch.where(active, -at_v * _square(v), 0)
        lefts.append(before)
        rights.append(at_sums)
        if before is steps[0][0]:
            return  # which is 1, whatever the scores are

        def pull(found: Tensor, rows: slice, u: Tensor = before) -> Tensor:
            return -found * _square(u[:, rows])

        at_rows, found = sort.sweep(at_sums, pull)
        lefts.append(at_rows)
        rights.append(v_before)
        at_v = torch.where(active, found, at_v)


def _at_scores(sort: _Sort, lefts: Tensor, rights: Tensor) -> Tensor:
    """The slopes at the scores, `(B, L)`, where those at P are lefts rights', both `(B, L, m)`."""
    slopes, at_spread = torch.zeros_like(sort.scores), torch.zeros_like(sort.scores)
    for rows, shares in sort.strips():
        pulls = lefts[:, rows] @ rights.mT
        pulls = pulls.sub_((pulls * shares).sum(2, keepdim=True)).mul_(shares).div_(sort.temperature)
        slopes += (pulls * sort.factors[:, rows, None]).sum(1)
        at_spread -= pulls.sum(1)
    for rows in _strips(sort.scores):
        signs = (sort.scores[:, rows, None] - sort.scores[:, None]).sign_()
        both = at_spread[:, rows, None] + at_spread[:, None]
        slopes[:, rows] += torch.where(sort.inside[:, None], signs * both, 0).sum(2)
    return slopes
