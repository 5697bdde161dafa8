"""Clouds: the rows of a list as a set of points, without labels. Their principal directions, moments and Gaussians, and
how similar two clouds are by each (Banerjee, Dubey, Machchhar & Chakrabarti 2009).

The principal directions of a cloud describe how its documents spread; two queries are similar if their directions are.
A cloud of rank 0 (one document, or only equal ones) has no directions. Moments and Gaussians are the baselines of the
paper's section 2. All work is in float64; the result has the dtype of the input. Nothing here has a gradient.
"""

from itertools import product
from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular, svd, vector_norm

from torchrank.errors import NotPositiveDefinite, check_choice
from torchrank.functional.arrays import Array, result_dtype, wide
from torchrank.functional.chunks import Cloud, for_clouds, many_eigh, side_by_side, width_of
from torchrank.functional.lists import Given, takes_arrays
from torchrank.functional.ragged import read

# ------------------------------------------------------------------------------------------------ principal directions

DIRECTIONS = ("ordered", "squared", "subspace", "weighted")  # similarities of clouds by their directions
TILE = 512  # clouds on either side of a tile of similarities, which stays in the cache


@takes_arrays
@torch.no_grad()
def cloud_pca(
    x: Array, offsets: Array, components: int, **given: Unpack[Given]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Principal directions of the rows of each list.

    Args:
        x: the rows of all lists, `(N, D)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        components: the number P of directions.

    Returns:
        Directions `(Q, P, D)` as unit rows by descending variance, their variances `(Q, P)`, the total variance `(Q,)`
        (all variances with 1/n) and the rank `(Q,)`, at most P. Directions and variances beyond the rank are zeros. The
        entry of each direction with the largest absolute value is positive.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [7.0, 7.0]])
        >>> u, variances, total, rank = cloud_pca(x, torch.tensor([0, 2, 3]), 2)
        >>> u[0, 0], variances, rank
        (tensor([0.6000, 0.8000]), tensor([[6.2500, 0.0000],
                [0.0000, 0.0000]]), tensor([1, 0]))
    """
    if components < 1:
        raise ValueError(f"components must be >= 1, got {components}")
    bounds, width, dtype = offsets.offsets, width_of(x), result_dtype(x)
    lists = len(offsets)
    u, eigenvalues = x.new_zeros(lists, components, width, dtype=dtype), x.new_zeros(lists, components, dtype=dtype)
    total, rank = x.new_zeros(lists, dtype=dtype), bounds.new_zeros(lists)
    tolerance = 1e-12 if x.dtype == torch.float64 else 1e-6
    results = (u, eigenvalues, total, rank)
    for_clouds(lambda cloud: _decompose(cloud, components, tolerance), x, bounds, results, shortest=2)
    return results


@takes_arrays
def choose_components(eigenvalues: Array, total: Array, rank: Array, variance: float = 0.8, cap: int = 20) -> int:
    """The smallest number of directions that explain a share of the variance of the clouds, on average.

    Args:
        eigenvalues: variances of the directions, `(Q, P)`.
        total: total variances, `(Q,)`.
        rank: ranks of the clouds, `(Q,)`; those of rank 0 are left out.
        variance: the share of the variance that should be explained.
        cap: the largest number that is returned.

    Returns:
        The number of directions, at most `cap` and at most P.

    Example:
        >>> choose_components(torch.tensor([[6.0, 2.0], [5.0, 4.0]]), torch.tensor([10.0, 10.0]), torch.tensor([2, 2]))
        2
    """
    width = eigenvalues.shape[1]
    place = torch.arange(1, width + 1, device=eigenvalues.device)
    explained = wide(eigenvalues).cumsum(1) / wide(total)[:, None]
    explained = torch.where((place >= rank[:, None]) & (rank[:, None] < width), 1.0, explained)
    short = explained[rank > 0].mean(0) < variance - 1e-12  # nan without clouds, which compares as False
    too_few: int = read(short.sum())
    return min(too_few + 1, cap, int(width))


def _decompose(cloud: Cloud, components: int, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Directions, variances, total variance and rank of a chunk, from the smaller one of X X' / n and X' X / n."""
    x, width = cloud.x, cloud.x.shape[2]
    between_rows = x.shape[1] <= width
    matrices = (torch.bmm(x, x.mT) if between_rows else torch.bmm(x.mT, x)).div_(cloud.length[:, None, None])
    total = matrices.diagonal(dim1=1, dim2=2).sum(1)
    if total.device.type == "cpu" and not read(total.isfinite().all()):
        raise ValueError("a cloud has values that are not finite or too large to be squared: clean or scale the rows")
    eigenvalues, vectors = _largest_eigenvalues(matrices, components)  # (B, k), (B, k, L or D), k <= P
    # The rank is the number of variances that are more than rounding errors; centring leaves at most n - 1.
    rounding = (torch.finfo(eigenvalues.dtype).eps * cloud.size).square() * width
    large = (eigenvalues > tolerance * eigenvalues[:, :1]) & (eigenvalues[:, :1] > rounding[:, None])
    rank = torch.minimum(large.sum(1), cloud.length.long() - 1)
    inside = torch.arange(eigenvalues.shape[1], device=x.device) < rank[:, None]
    u = torch.bmm(vectors, x) if between_rows else vectors
    u = u / torch.where(inside, vector_norm(u, dim=2), 1).unsqueeze(2)
    largest = u.abs().argmax(2, keepdim=True)
    u = torch.where(inside.unsqueeze(2), u * u.gather(2, largest).sign(), 0)
    missing, pad = components - eigenvalues.shape[1], torch.nn.functional.pad
    return pad(u, (0, 0, 0, missing)), pad(torch.where(inside, eigenvalues, 0), (0, missing)), total, rank


def _largest_eigenvalues(matrices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues in descending order, and their eigenvectors as rows.

    LAPACK's divide and conquer fails on a few matrices with entries as small as the smallest floats; their svd is the
    same decomposition.
    """
    try:
        values, vectors = many_eigh(matrices)
    except RuntimeError:  # torch.linalg.LinAlgError is one
        _, values, rows = svd(matrices)
        return values[:, :count], rows[:, :count]
    return values[:, -count:].flip(1), vectors[:, :, -count:].flip(2).mT


@takes_arrays
@torch.no_grad()
def cloud_similarity(
    u: Array,
    ranks: Array,
    v: Array,
    ranks_v: Array,
    *,
    kind: str = "ordered",
    eigenvalues: Array = None,
    eigenvalues_v: Array = None,
    max_bytes: int = 2**31,
) -> Tensor:
    """Similarity of all clouds of one set to all of another, from 0 to 1; twice as fast if both sets are the same.

    Args:
        u: directions of the first set, `(Q, P, D)`, as `cloud_pca` returns them.
        ranks: its ranks, `(Q,)`.
        v: directions of the second set, `(Q', P, D)`.
        ranks_v: its ranks, `(Q',)`.
        kind: "ordered" is the sum of |u_p . v_p| over max(r, r'), which is eq. 5 of Banerjee et al. 2009 for clouds of
            full rank; "squared" is the same with squares; "subspace" has squares over all pairs of directions, so that
            their order does not count; "weighted" weighs |u_p . v_p| by sqrt(l_p l'_p) of the shares of variance.
        eigenvalues: variances of the first set, `(Q, P)`, which "weighted" needs.
        eigenvalues_v: variances of the second set, `(Q', P)`, which "weighted" needs.
        max_bytes: the largest size of the result.

    Returns:
        Similarities, `(Q, Q')`; 0 for clouds of rank 0.

    Example:
        >>> u, rank = torch.eye(3)[None, :2], torch.tensor([2])
        >>> [cloud_similarity(u, rank, u.flip(1), rank, kind=kind).item() for kind in ("ordered", "subspace")]
        [0.0, 1.0]
    """
    left, right = _sides(kind, (u, ranks, eigenvalues), (v, ranks_v, eigenvalues_v))
    size = len(u) * len(v) * left.u.dtype.itemsize
    if size > max_bytes:
        needed = f"similarities of {len(u)} x {len(v)} clouds need {size / 2**30:.1f} GiB, but max_bytes allows "
        raise ValueError(f"{needed}{max_bytes / 2**30:.1f}: use nearest_clouds, or raise max_bytes")
    similarities = left.u.new_empty(len(u), len(v))
    for top in range(0, len(u), TILE):
        for begin in range(top if left is right else 0, len(v), TILE):
            tile = _similarity(left, right, kind, top, begin)
            if left is right:
                tile = tile.triu_().add_(tile.triu(1).T) if begin == top else tile
                similarities[begin : begin + TILE, top : top + TILE] = tile.T
            similarities[top : top + TILE, begin : begin + TILE] = tile
    return similarities


@takes_arrays
@torch.no_grad()
def nearest_clouds(
    u: Array,
    ranks: Array,
    v: Array,
    ranks_v: Array,
    k: int = 1,
    *,
    kind: str = "ordered",
    eigenvalues: Array = None,
    eigenvalues_v: Array = None,
) -> tuple[Tensor, Tensor]:
    """The k clouds of `v` most similar to each cloud of `u`. Needs the memory of a few tiles for any number of clouds.

    A cloud of rank 0 in v is never a neighbour.

    Args:
        u: directions of the first set, `(Q, P, D)`, as `cloud_pca` returns them.
        ranks: its ranks, `(Q,)`.
        v: directions of the second set, `(Q', P, D)`.
        ranks_v: its ranks, `(Q',)`.
        k: the number of neighbours, from 1 to Q'.
        kind: "ordered", "squared", "subspace" or "weighted", as in `cloud_similarity`.
        eigenvalues: variances of the first set, `(Q, P)`, which "weighted" needs.
        eigenvalues_v: variances of the second set, `(Q', P)`, which "weighted" needs.

    Returns:
        Similarities `(Q, k)`, best first, and indices into v `(Q, k)`; of equally similar clouds the first one is
        taken. Where no neighbour is left the similarity is 0 and the index -1.

    Example:
        >>> v = torch.eye(3)[:, None]
        >>> nearest_clouds(v[1:], torch.tensor([1, 1]), v, torch.tensor([1, 1, 0]))
        (tensor([[1.],
                [0.]]), tensor([[1],
                [0]]))
    """
    if not 1 <= k <= len(v):
        raise ValueError(f"k must be from 1 to {len(v)}, the number of clouds of v, got {k}")
    left, right = _sides(kind, (u, ranks, eigenvalues), (v, ranks_v, eigenvalues_v))
    best = left.u.new_full((len(u), k), -1)  # worse than any similarity
    index = ranks.new_full((len(u), k), -1, dtype=torch.int64)
    for top, begin in product(range(0, len(u), TILE), range(0, len(v), TILE)):
        rows, tile = slice(top, top + TILE), _similarity(left, right, kind, top, begin)
        tile.masked_fill_(ranks_v[begin : begin + TILE] == 0, -1)
        place = torch.arange(begin, begin + tile.shape[1], device=index.device).expand(tile.shape)
        best[rows], chosen = _top(torch.cat([best[rows], tile], 1), k)
        index[rows] = torch.cat([index[rows], place], 1).gather(1, chosen)
    return best.clamp_(min=0), index


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row and their indices, the first of equal ones: `topk` may take any of them."""
    if k == 1:
        return values.max(1, keepdim=True)
    ordered, index = values.sort(dim=1, descending=True, stable=True)
    return ordered[:, :k], index[:, :k]


class _Side(NamedTuple):
    """One of the two sets of clouds."""

    u: Tensor  # (P, Q, D) directions times their weights, 0 beyond the rank
    divisor: Tensor  # (Q,)


Directions = tuple[Tensor, Tensor, Tensor | None]  # u, ranks, eigenvalues


def _sides(kind: str, one: Directions, other: Directions) -> tuple[_Side, _Side]:
    """Both sets, prepared for matrix products; one object if they are the same set."""
    check_choice(DIRECTIONS, kind=kind)
    shape, shape_v = one[0].shape, other[0].shape
    if len(shape) != 3 or len(shape_v) != 3 or shape[1:] != shape_v[1:]:
        raise ValueError(f"u and v must be (Q, P, D) with the same P and D, got {tuple(shape)} and {tuple(shape_v)}")
    weighted = kind == "weighted"
    if weighted and (one[2] is None or other[2] is None):
        raise ValueError("kind='weighted' needs the variances: give eigenvalues and eigenvalues_v")
    left, same = _side(*one, weighted), all(a is b for a, b in zip(one, other, strict=True))
    return left, left if same else _side(*other, weighted)


def _side(u: Tensor, ranks: Tensor, eigenvalues: Tensor | None, weighted: bool) -> _Side:
    dtype, ranks = result_dtype(u), ranks.clamp(max=u.shape[1])
    weights = (torch.arange(u.shape[1], device=u.device) < ranks[:, None]).to(dtype)
    divisor = ranks.to(dtype)
    if weighted and eigenvalues is not None:
        shares = weights * eigenvalues.to(dtype)
        weights = (shares / shares.sum(1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)).sqrt()
        divisor = torch.ones_like(divisor)
    return _Side((u.to(dtype) * weights.unsqueeze(2)).transpose(0, 1).contiguous(), divisor)


def _similarity(left: _Side, right: _Side, kind: str, top: int, begin: int) -> Tensor:
    """A tile of the similarities from row `top` and column `begin`, by one product per pair of directions."""
    u, v = left.u[:, top : top + TILE], right.u[:, begin : begin + TILE]
    total, numbers = u.new_zeros(u.shape[1], v.shape[1]), range(len(u))
    for p, q in product(numbers, numbers) if kind == "subspace" else zip(numbers, numbers, strict=True):
        cosines = u[p] @ v[q].T
        if kind in ("squared", "subspace"):
            total.addcmul_(cosines, cosines)
        else:
            total.add_(cosines.abs_())
    divisor = torch.maximum(left.divisor[top : top + TILE, None], right.divisor[begin : begin + TILE])
    return total.div_(divisor.clamp_(min=1)).clamp_(max=1)


# ----------------------------------------------------------------------------------------------- moments and Gaussians

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
