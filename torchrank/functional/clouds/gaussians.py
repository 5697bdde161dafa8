"""Clouds as moments and as Gaussians, and the divergences between these.

The baselines for the principal directions in Banerjee, Dubey, Machchhar & Chakrabarti 2009, section 2. All work is in
float64; the result has the dtype of the input. Nothing here has a gradient.
"""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular

from torchrank.errors import NotPositiveDefinite, check_choice
from torchrank.functional.arrays import Array, result_dtype, wide
from torchrank.functional.chunks import side_by_side
from torchrank.functional.clouds.rows import Cloud, for_clouds, width_of
from torchrank.functional.lists import Given, takes_arrays
from torchrank.functional.ragged import read

LEAST_VARIANCE = 1e-12  # variance up to which a feature has no skew
PAIR_CLOUDS = 1000  # largest number of clouds on a side for which every pair gets a Cholesky factor
PAIR_NUMBERS = 2**21  # numbers in the matrices of pairs that are made at once


@takes_arrays
@torch.no_grad()
def cloud_moments(x: Array, offsets: Array, **given: Unpack[Given]) -> tuple[Tensor, Tensor, Tensor]:
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
    lists, width, dtype = len(offsets), width_of(x), result_dtype(x)
    mean, variance, skew = (x.new_zeros(lists, width, dtype=dtype) for _ in range(3))

    def moments(cloud: Cloud) -> tuple[Tensor, Tensor, Tensor]:
        count, squares = cloud.length[:, None], cloud.x.square()
        variance, third = squares.sum(1) / count, squares.mul_(cloud.x).sum(1) / count
        skew = torch.where(variance > LEAST_VARIANCE, third / variance.clamp_min(LEAST_VARIANCE).pow(1.5), 0)
        return cloud.mean, variance, skew

    for_clouds(moments, x, offsets.offsets, (mean, variance, skew), shortest=1)
    return mean, variance, skew


@takes_arrays
@torch.no_grad()
def cloud_gaussians(
    x: Array, offsets: Array, *, shrink: float = 0.1, ridge: float = 1e-6, **given: Unpack[Given]
) -> tuple[Tensor, Tensor]:
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
    if not 0 <= shrink <= 1 or ridge < 0:
        raise ValueError(f"shrink must be from 0 to 1 and ridge >= 0, got shrink={shrink} and ridge={ridge}")
    lists, width, dtype = len(offsets), width_of(x), result_dtype(x)
    means, covariances = x.new_zeros(lists, width, dtype=dtype), x.new_zeros(lists, width, width, dtype=dtype)
    covariances.diagonal(dim1=1, dim2=2).fill_(ridge)  # lists without rows keep this

    def gaussians(cloud: Cloud) -> tuple[Tensor, Tensor]:
        covariance = torch.bmm(cloud.x.mT, cloud.x).div_(cloud.length[:, None, None])
        diagonal = covariance.diagonal(dim1=1, dim2=2)
        variance = diagonal.sum(1, keepdim=True) / max(width, 1)
        covariance.mul_(1 - shrink)
        diagonal.add_(shrink * variance + ridge)
        return cloud.mean, covariance

    for_clouds(gaussians, x, offsets.offsets, (means, covariances), shortest=1)
    return means, covariances


@takes_arrays
@torch.no_grad()
def gaussian_divergence(
    means: Array, covariances: Array, means_v: Array, covariances_v: Array, *, kind: str = "jeffreys"
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
    (roots, info), (roots_v, info_v) = cholesky_ex(wide(covariances)), cholesky_ex(wide(covariances_v))
    _check_roots(info, info_v)
    one = _Gaussians(wide(means), wide(covariances), roots)
    other = _Gaussians(wide(means_v), wide(covariances_v), roots_v)
    return DIVERGENCES[kind](one, other).clamp_(min=0).to(dtype)


class _Gaussians(NamedTuple):
    """One of the two sets."""

    means: Tensor  # (Q, D) float64
    covariances: Tensor  # (Q, D, D)
    roots: Tensor  # (Q, D, D) Cholesky factors of the covariances


def _jeffreys(one: _Gaussians, other: _Gaussians) -> Tensor:
    """(T + T' - 2 D) / 4 with T = tr(S2^-1 S1) + (m1 - m2)' S2^-1 (m1 - m2): the log determinants cancel.

    The common mean is subtracted from all means, which only saves digits.
    """
    centre = torch.cat([one.means, other.means]).sum(0) / max(len(one.means) + len(other.means), 1)
    one, other = (side._replace(means=side.means - centre) for side in (one, other))
    there, back = _one_way(one, other), _one_way(other, one)
    return there.add_(back.T).sub_(2 * len(centre)).div_(4)


def _one_way(one: _Gaussians, other: _Gaussians) -> Tensor:
    """T = (S1 + m1 m1') . S2^-1 - 2 m1 . S2^-1 m2 + m2' S2^-1 m2 of all pairs, by two matrix products."""
    inverses = torch.cholesky_inverse(other.roots)
    images = torch.bmm(inverses, other.means.unsqueeze(2)).squeeze(2)
    second_moments = torch.baddbmm(one.covariances, one.means.unsqueeze(2), one.means.unsqueeze(1))
    total = (images * other.means).sum(1) + second_moments.flatten(1) @ inverses.flatten(1).T
    return total.addmm_(one.means, images.T, alpha=-2)


def _bhattacharyya(one: _Gaussians, other: _Gaussians) -> Tensor:
    """(m1 - m2)' S^-1 (m1 - m2) / 8 + ln(|S| / sqrt(|S1| |S2|)) / 2 with S = (S1 + S2) / 2, in chunks of pairs."""
    (count, width), count_v = one.means.shape, len(other.means)
    half, half_v = _half_log_determinants(one.roots), _half_log_determinants(other.roots)

    def solve(pairs: Tensor) -> Tensor:
        i, j = pairs // count_v, pairs % count_v
        root = cholesky_ex(one.covariances[i].add_(other.covariances[j]).div_(2))[0]
        image = solve_triangular(root, (one.means[i] - other.means[j]).unsqueeze(2), upper=False)
        distance: Tensor = image.square().sum((1, 2)) / 8 + _half_log_determinants(root) - (half[i] + half_v[j]) / 2
        return distance

    chunks = torch.arange(count * count_v, device=half.device).split(max(1, PAIR_NUMBERS // max(1, width**2)))
    return torch.cat(side_by_side(solve, list(chunks), half.device)).view(count, count_v)


DIVERGENCES = {"jeffreys": _jeffreys, "bhattacharyya": _bhattacharyya}


def _half_log_determinants(roots: Tensor) -> Tensor:
    return roots.diagonal(dim1=1, dim2=2).log().sum(1)


def _check_gaussians(means: Tensor, covariances: Tensor, means_v: Tensor, covariances_v: Tensor) -> None:
    for mean, covariance in ((means, covariances), (means_v, covariances_v)):
        shapes = tuple(mean.shape), tuple(covariance.shape)
        if mean.ndim != 2 or shapes[1] != (*shapes[0], shapes[0][1]):
            raise ValueError("means must be (Q, D) and covariances (Q, D, D), got {} and {}".format(*shapes))
    widths = means.shape[1], means_v.shape[1]
    if widths[0] != widths[1]:
        raise ValueError("the two sets must have the same number of features, got {} and {}".format(*widths))


def _check_roots(info: Tensor, info_v: Tensor) -> None:
    """Refuses covariances without a Cholesky root, after one read for both sets (none on the meta device)."""
    broken = [] if info.is_meta else read(torch.cat([info, info_v]).ne(0))
    if any(broken):
        number = broken.index(True)
        name = f"covariances[{number}]" if number < len(info) else f"covariances_v[{number - len(info)}]"
        raise NotPositiveDefinite(f"{name} is not positive definite: shrink it or add a ridge, as cloud_gaussians does")
