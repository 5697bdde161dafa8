"""Clouds as moments and as Gaussians, and the divergences between these.

The baselines for the principal directions in Banerjee, Dubey, Machchhar & Chakrabarti 2009, section 2. All work is in
float64; the result has the dtype of the input. Nothing here has a gradient.
"""

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular

from torchrank.errors import NotPositiveDefinite, check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.batching import Chunk, centred, check_rows, cloud_chunks
from torchrank.functional.ragged import read, wide
from torchrank.functional.ranking import result_dtype
from torchrank.functional.threads import side_by_side

FLAT = 1e-12  # variance up to which a feature has no skew
PAIR_CLOUDS = 1000  # largest number of clouds on a side for which every pair gets a Cholesky factor
PAIR_NUMBERS = 2**21  # numbers in the matrices of pairs that are made at once


@takes_arrays
@torch.no_grad()
def cloud_moments(x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance (1/n) and skew E[(x - mean)^3] / s^3 of every feature in each list.

    Args:
        x: the rows of all lists, `(N, D)`.
        offsets: where the lists begin and end, `(Q + 1,)`.

    Returns:
        Means, variances and skews, `(Q, D)` each. The skew is 0 where the variance is 1e-12 or less; a list without
        rows has zeros.

    Example:
        >>> [part.tolist() for part in cloud_moments(torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([0, 3]))]
        [[[1.0]], [[2.0]], [[0.7071067690849304]]]
    """
    check_rows(x)
    moments = [x.new_zeros(len(offsets) - 1, x.shape[1], dtype=result_dtype(x)) for _ in range(3)]

    def solve(chunk: Chunk) -> None:
        cloud = centred(x, offsets, chunk)
        count = cloud.length[:, None]
        squares = cloud.x.square()
        variance, third = squares.sum(1) / count, squares.mul_(cloud.x).sum(1) / count
        skew = torch.where(variance > FLAT, third / variance.clamp_min(FLAT).pow(1.5), 0)
        for whole, part in zip(moments, (cloud.mean, variance, skew), strict=True):
            whole[chunk.lists] = part.to(whole.dtype)

    side_by_side(solve, cloud_chunks(x, offsets, shortest=1), x.device)
    return moments[0], moments[1], moments[2]


@takes_arrays
@torch.no_grad()
def cloud_gaussians(x: Tensor, offsets: Tensor, *, shrink: float = 0.1, ridge: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Means and shrunk covariances (1 - shrink) S + shrink (tr S / D) I + ridge I of the lists.

    Without shrinkage and ridge the covariance is singular for lists with D rows or fewer, and for features that are
    constant in a list.

    Args:
        x: the rows of all lists, `(N, D)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        shrink: how far S moves towards a multiple of the identity, from 0 to 1.
        ridge: what is added to the diagonal.

    Returns:
        Means `(Q, D)` and covariances `(Q, D, D)`.

    Example:
        >>> cloud_gaussians(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 2]), shrink=0.5, ridge=0.0)[1]
        tensor([[[0.7500, 0.0000],
                 [0.0000, 0.2500]]])
    """
    check_rows(x)
    if not 0 <= shrink <= 1 or ridge < 0:
        raise ValueError(f"shrink must be from 0 to 1 and ridge >= 0, got shrink={shrink} and ridge={ridge}")
    lists, width = len(offsets) - 1, x.shape[1]
    means = x.new_zeros(lists, width, dtype=result_dtype(x))
    covariances = x.new_zeros(lists, width, width, dtype=result_dtype(x))
    covariances.diagonal(dim1=1, dim2=2).fill_(ridge)  # lists without rows keep this

    def solve(chunk: Chunk) -> None:
        cloud = centred(x, offsets, chunk)
        scatter = torch.bmm(cloud.x.mT, cloud.x).div_(cloud.length[:, None, None])
        diagonal = scatter.diagonal(dim1=1, dim2=2)
        mean = diagonal.sum(1, keepdim=True) / max(width, 1)
        scatter.mul_(1 - shrink)
        diagonal.add_(shrink * mean + ridge)
        means[chunk.lists] = cloud.mean.to(means.dtype)
        covariances[chunk.lists] = scatter.to(means.dtype)

    side_by_side(solve, cloud_chunks(x, offsets, shortest=1), x.device)
    return means, covariances


@takes_arrays
@torch.no_grad()
def gaussian_divergence(
    means: Tensor, covariances: Tensor, means_v: Tensor, covariances_v: Tensor, *, kind: str = "jeffreys"
) -> Tensor:
    """Divergences between all Gaussians of one set and all of another; equal Gaussians have 0.

    Args:
        means: means of the first set, `(Q, D)`.
        covariances: its covariances, `(Q, D, D)`.
        means_v: means of the second set, `(Q', D)`.
        covariances_v: its covariances, `(Q', D, D)`.
        kind: "jeffreys" is (KL(1|2) + KL(2|1)) / 2, which the paper calls Jensen-Shannon; it takes two matrix products
            for all pairs. "bhattacharyya" is the distance D_B, where exp(-D_B) is the kernel of eq. 4; it takes a
            Cholesky factor for every pair.

    Returns:
        Divergences, `(Q, Q')`.

    Example:
        >>> means, covariances = torch.tensor([[0.0], [2.0]]), torch.ones(2, 1, 1)
        >>> gaussian_divergence(means, covariances, means, covariances).tolist()
        [[0.0, 2.0], [2.0, 0.0]]
        >>> gaussian_divergence(means, covariances, means, covariances, kind="bhattacharyya").tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """
    check_choice(DIVERGENCES, kind=kind)
    _check_gaussians(means, covariances, means_v, covariances_v)
    if kind == "bhattacharyya" and max(len(means), len(means_v)) > PAIR_CLOUDS:
        raise ValueError(
            f"bhattacharyya factors a matrix for each of {len(means)} x {len(means_v)} pairs, but at most "
            f"{PAIR_CLOUDS} on a side are allowed: use kind='jeffreys', or fewer clouds"
        )
    dtype = torch.promote_types(result_dtype(means), result_dtype(means_v))
    first, second = (wide(means), wide(covariances)), (wide(means_v), wide(covariances_v))
    (roots, info), (roots_v, info_v) = cholesky_ex(first[1]), cholesky_ex(second[1])
    _check_roots(info, info_v)
    return DIVERGENCES[kind](*first, roots, *second, roots_v).clamp_(min=0).to(dtype)


def _jeffreys(means: Tensor, s: Tensor, roots: Tensor, means_v: Tensor, s_v: Tensor, roots_v: Tensor) -> Tensor:
    """(T + T' - 2 D) / 4 with T = tr(S2^-1 S1) + (m1 - m2)' S2^-1 (m1 - m2): the log determinants cancel.

    The common mean is subtracted from all means, which only saves digits.
    """
    centre = torch.cat([means, means_v]).sum(0) / max(len(means) + len(means_v), 1)
    means, means_v = means - centre, means_v - centre
    there = _one_way(means, s, means_v, roots_v)
    back = _one_way(means_v, s_v, means, roots)
    return there.add_(back.T).sub_(2 * means.shape[1]).div_(4)


def _one_way(means: Tensor, s: Tensor, means_v: Tensor, roots_v: Tensor) -> Tensor:
    """T = (S1 + m1 m1') . S2^-1 - 2 m1 . S2^-1 m2 + m2' S2^-1 m2 of all pairs, by two matrix products."""
    inverses = torch.cholesky_inverse(roots_v)
    images = torch.bmm(inverses, means_v.unsqueeze(2)).squeeze(2)
    second = torch.baddbmm(s, means.unsqueeze(2), means.unsqueeze(1))  # E[x x']
    total = (images * means_v).sum(1) + second.flatten(1) @ inverses.flatten(1).T
    return total.addmm_(means, images.T, alpha=-2)


def _bhattacharyya(means: Tensor, s: Tensor, roots: Tensor, means_v: Tensor, s_v: Tensor, roots_v: Tensor) -> Tensor:
    """(m1 - m2)' S^-1 (m1 - m2) / 8 + ln(|S| / sqrt(|S1| |S2|)) / 2 with S = (S1 + S2) / 2, in chunks of pairs."""
    shape, half, half_v = (len(means), len(means_v)), _half_log_determinant(roots), _half_log_determinant(roots_v)
    step = max(1, PAIR_NUMBERS // max(1, means.shape[1] ** 2))

    def solve(pair: Tensor) -> Tensor:
        i, j = pair // shape[1], pair % shape[1]
        root = cholesky_ex(s[i].add_(s_v[j]).div_(2))[0]
        image = solve_triangular(root, (means[i] - means_v[j]).unsqueeze(2), upper=False)
        distance: Tensor = image.square().sum((1, 2)) / 8 + _half_log_determinant(root) - (half[i] + half_v[j]) / 2
        return distance

    pairs = torch.arange(shape[0] * shape[1], device=means.device)
    found = side_by_side(solve, list(torch.split(pairs, step)), means.device)
    return torch.cat(found).view(shape)


DIVERGENCES = {"jeffreys": _jeffreys, "bhattacharyya": _bhattacharyya}


def _half_log_determinant(roots: Tensor) -> Tensor:
    return roots.diagonal(dim1=1, dim2=2).log().sum(1)


def _check_gaussians(means: Tensor, covariances: Tensor, means_v: Tensor, covariances_v: Tensor) -> None:
    for centre, spread in ((means, covariances), (means_v, covariances_v)):
        if centre.ndim != 2 or spread.shape != (*centre.shape, centre.shape[-1]):
            raise ValueError(
                f"means must be (Q, D) and covariances (Q, D, D), got {tuple(centre.shape)} and {tuple(spread.shape)}"
            )
    if means.shape[1] != means_v.shape[1]:
        raise ValueError(
            f"the two sets must have the same number of features, got {means.shape[1]} and {means_v.shape[1]}"
        )


def _check_roots(info: Tensor, info_v: Tensor) -> None:
    """Refuses covariances without a Cholesky root, after one read for both sets (none on the meta device)."""
    broken = [] if info.is_meta else read(torch.cat([info, info_v]).ne(0))
    if any(broken):
        number = broken.index(True)
        name = f"covariances[{number}]" if number < len(info) else f"covariances_v[{number - len(info)}]"
        raise NotPositiveDefinite(f"{name} is not positive definite: shrink it or add a ridge, as cloud_gaussians does")
