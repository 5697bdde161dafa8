"""Symmetric positive definite matrices: geometric means, the GMML metric, scatter of pairs, Mahalanobis distances.

Matrices are batched, `(..., D, D)`, and only their symmetric part counts. Solves run in float64 for any input; the
result has the dtype of the input. No function adds a ridge. Only `pair_scatter`, `gmml_residual` and `mahalanobis` have
gradients: the gradient of an eigenvector is NaN where eigenvalues are equal, so the parameter of a trained metric is
its factor.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, eigh, matrix_norm, solve_triangular, svd, vector_norm

from torchrank.errors import NotPositiveDefinite
from torchrank.functional.arrays import Array, result_dtype, wide
from torchrank.functional.chunks import many_eigh, side_by_side
from torchrank.functional.lists import takes_arrays
from torchrank.functional.ragged import read

FORMED = 1e6  # condition up to which C = L^T D L may be formed: beyond it the svd of L^T K keeps twice the digits
SUSPECT = 1e-8  # unexplained share of a variance below which eigenvalues must decide whether the rank is full

broadcast_shapes: Callable[..., torch.Size] = torch.broadcast_shapes  # which has no types


@takes_arrays
@torch.no_grad()
def geometric_mean(a: Array, b: Array, t: float = 0.5) -> Tensor:
    """Point A #_t B on the geodesic from A (t=0) to B (t=1): A^1/2 (A^-1/2 B A^-1/2)^t A^1/2.

    Zadeh, Hosseini & Sra, ICML 2016. Computed through Cholesky factors, never through an inverse, from the nearer end:
    A #_t B = B #_(1-t) A, where the exponent changes with the base.

    Args:
        a: positive definite matrices A, `(..., D, D)`.
        b: positive definite matrices B, `(..., D, D)`.
        t: the position on the geodesic, from 0 to 1.

    Returns:
        The points, `(..., D, D)`.

    Raises:
        NotPositiveDefinite: one of the matrices is singular or indefinite.

    Example:
        >>> geometric_mean(torch.eye(2), 16 * torch.eye(2), t=0.25)
        tensor([[2., 0.],
                [0., 2.]])
    """
    shape, (first, second), (scale, other_scale) = _flatten(a, b, t)
    (base, other), broken, suspect = _cholesky(torch.stack([first, second]))
    broken_a, broken_b, suspect_a, suspect_b = _true_indices(torch.cat([broken, suspect]))
    _check_rank(first, broken_a, suspect_a, "a", shape, result_dtype(a))
    _check_rank(second, broken_b, suspect_b, "b", shape, result_dtype(b))
    scale = torch.exp2(2 * ((1 - t) * scale + t * other_scale))[:, None, None]
    if t > 0.5:
        base, other, t = other, base, 1 - t
    u, values, _ = svd(solve_triangular(base, other, upper=False))
    mean = _outer(base @ (u * values.pow(t).unsqueeze(-2)))
    return (scale * mean).view(shape).to(result_dtype(a))


@takes_arrays
@torch.no_grad()
def gmml(similar: Array, dissimilar: Array, t: float = 0.5) -> Tensor:
    """Geometric-mean metric M = S^-1 #_t D of pair scatters (Zadeh, Hosseini & Sra, ICML 2016).

    At t=1/2 it is the only positive definite solution of M S M = D.

    Args:
        similar: scatter S of similar pairs, `(..., D, D)`, positive definite.
        dissimilar: scatter D of dissimilar pairs, `(..., D, D)`. If it is singular, the limit is returned.
        t: t=0 gives S^-1, t=1 gives D.

    Returns:
        The metrics, `(..., D, D)`.

    Raises:
        NotPositiveDefinite: `similar` is singular or indefinite, or `dissimilar` is indefinite.

    Example:
        >>> gmml(torch.diag(torch.tensor([1.0, 4.0])), torch.diag(torch.tensor([9.0, 1.0])))
        tensor([[3.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    return _outer(_factor(similar, dissimilar, t)).to(result_dtype(similar))


@takes_arrays
@torch.no_grad()
def gmml_factor(similar: Array, dissimilar: Array, t: float = 0.5) -> Tensor:
    """A factor F of the geometric-mean metric: F F^T = `gmml(similar, dissimilar, t)`.

    Args:
        similar: scatter S of similar pairs, `(..., D, D)`, positive definite.
        dissimilar: scatter D of dissimilar pairs, `(..., D, D)`. If it is singular, the limit is returned.
        t: t=0 gives a factor of S^-1, t=1 one of D.

    Returns:
        The factors, `(..., D, D)`.

    Raises:
        NotPositiveDefinite: `similar` is singular or indefinite, or `dissimilar` is indefinite.

    Example:
        >>> factor = gmml_factor(torch.diag(torch.tensor([1.0, 4.0])), torch.diag(torch.tensor([9.0, 1.0])))
        >>> factor @ factor.T
        tensor([[3.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    return _factor(similar, dissimilar, t).to(result_dtype(similar))


@takes_arrays
def gmml_residual(factor: Array, similar: Array, dissimilar: Array) -> Tensor:
    """The residual ||M S M - D|| / ||D|| in the Frobenius norm with M = F F^T: 0 for the metric of t=1/2.

    Args:
        factor: factors F, `(..., D, k)`.
        similar: scatter S of similar pairs, `(..., D, D)`.
        dissimilar: scatter D of dissimilar pairs, `(..., D, D)`.

    Returns:
        The residuals, `(...)`.

    Example:
        >>> gmml_residual(torch.tensor([[2.0]]), torch.tensor([[1.0]]), torch.tensor([[16.0]]))
        tensor(0.)
    """
    metric, s, d = _outer(wide(factor)), wide(similar), wide(dissimilar)
    size = matrix_norm(d).clamp_min(torch.finfo(d.dtype).tiny)
    residual: Tensor = matrix_norm(metric @ s @ metric - d) / size
    return residual.to(result_dtype(factor))


@takes_arrays
def pair_scatter(positives: Array, negatives: Array) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scatters of similar and of dissimilar pairs (Su, King & Lyu 2017, eq. 4 and 5).

    They are the sums of (x_i - x_j)(x_i - x_j)^T over all pairs of two positives, each once, and over all pairs of a
    positive and a negative. Exact, but no pair is formed: with A and B centred at the mean of the positives they are
    n+ A^T A and n- A^T A + n+ B^T B.

    Args:
        positives: relevant rows, `(..., n+, D)`.
        negatives: irrelevant rows, `(..., n-, D)`.

    Returns:
        The two scatters, `(..., D, D)` each, and the two numbers of pairs, n+ (n+ - 1) / 2 and n+ n-.

    Example:
        >>> pair_scatter(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0]]))
        (tensor([[4.]]), tensor([[10.]]), tensor(1), tensor(2))
    """
    a, b = wide(positives), wide(negatives)
    n, m, dtype = a.shape[-2], b.shape[-2], result_dtype(positives)
    for _ in range(2):  # the second pass removes the rounding error of the first mean
        centre = a.sum(-2, keepdim=True) / max(n, 1)
        a, b = a - centre, b - centre
    within = a.mT @ a
    similar, dissimilar = n * within, m * within + n * (b.mT @ b)
    pairs, mixed = (torch.full((), count, device=a.device) for count in (n * (n - 1) // 2, n * m))
    return similar.to(dtype), dissimilar.to(dtype), pairs, mixed


@takes_arrays
@torch.no_grad()
def project_psd(a: Array) -> Tensor:
    """The positive semi-definite matrix nearest to the symmetric part of `a` in the Frobenius norm.

    Args:
        a: matrices, `(..., D, D)`.

    Returns:
        Their projections, `(..., D, D)`.

    Example:
        >>> project_psd(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    values, vectors = eigh(_symmetric(wide(a)))
    return _outer(vectors * values.clamp_min(0).sqrt().unsqueeze(-2)).to(result_dtype(a))


@takes_arrays
def mahalanobis(x: Array, anchors: Array, factors: Array) -> Tensor:
    """Distances |F_r^T (x_i - a_r)| of rows x_i from anchors a_r under the metrics F_r F_r^T. Differentiable.

    One matrix product with an intermediate of N M k numbers. Distances below its rounding error are 0, for instance
    that of an anchor from itself, and have the gradient 0.

    Args:
        x: rows, `(N, D)`.
        anchors: one anchor per metric, `(M, D)`.
        factors: factors of the metrics, `(M, D, k)`.

    Returns:
        Distances, `(N, M)`.

    Example:
        >>> mahalanobis(torch.tensor([[3.0, 4.0]]), torch.zeros(2, 2), torch.stack([torch.eye(2), 2 * torch.eye(2)]))
        tensor([[ 5., 10.]])
    """
    centre = anchors.detach().sum(0) / max(len(anchors), 1)  # a common shift of anchors and rows then loses no digits
    x, anchors = x - centre, anchors - centre
    metrics, size, width = factors.shape
    images = (x @ factors.transpose(0, 1).reshape(size, -1)).view(len(x), metrics, width)
    distances = vector_norm(images - torch.einsum("md,mdk->mk", anchors, factors), dim=-1)
    rounding = 4 * size**0.5 * torch.finfo(distances.dtype).eps
    noise = rounding * vector_norm(anchors.detach(), dim=-1) * matrix_norm(factors.detach())
    return torch.where(distances > noise, distances, 0)


# The GMML factor. With S = L L^T, D = K K^T and C = L^T D L = V diag(c) V^T the metric is M = L^-T C^t L^-1, and
# F = L^-T V c^(t/2). Features are sorted by descending scale of S and D: on such graded matrices the decompositions
# keep the digits of small features too (dead features with a ridge of 1e-8: error 2e-15 instead of 2e-8).


def _factor(similar: Tensor, dissimilar: Tensor, t: float) -> Tensor:
    """F in float64: eigh of all matrices, then one read of flags to find those that need a more accurate method."""
    shape, (s, d), (scale_s, scale_d) = _flatten(similar, dissimilar, t)
    order = (s.diagonal(dim1=1, dim2=2) * d.diagonal(dim1=1, dim2=2)).argsort(dim=1, descending=True)
    s, d = _permute(s, order), _permute(d, order)
    (root_s, root_d), broken, suspect = _cholesky(torch.stack([s, d]))
    factor, accurate = _solve(root_s, root_d, t)
    flags = torch.stack([*broken, suspect[0], ~accurate | suspect[0] | broken[1]])
    broken_s, broken_d, suspect_s, again = _true_indices(flags)
    _check_rank(s, broken_s, suspect_s, "similar", shape, result_dtype(similar))
    if broken_d:
        root_d[broken_d] = _semidefinite_roots(d, broken_d, "dissimilar", shape, result_dtype(dissimilar))
    if again:
        factor[again], _ = _solve(root_s[again], root_d[again], t, by_svd=True)
    factor = factor * torch.exp2((t - 1) * scale_s + t * scale_d)[:, None, None]
    return factor.gather(1, order.argsort(dim=1).unsqueeze(-1).expand_as(factor)).view(shape)


def _solve(root_s: Tensor, root_d: Tensor, t: float, *, by_svd: bool = False) -> tuple[Tensor, Tensor]:
    """The factors from L and K, and which of them are accurate.

    On the CPU, parts of the batch run in parallel. Several threads per matrix took ten times as long on a busy machine,
    because they wait for each other.
    """

    def solve(roots: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        root_s, root_d = roots
        accurate = torch.ones(len(root_s), dtype=torch.bool, device=root_s.device)
        if t == 1:
            return root_d.clone(), accurate
        if t == 0:
            turned = torch.eye(root_s.shape[-1], dtype=root_s.dtype, device=root_s.device).expand_as(root_s)
        elif by_svd:  # singular vectors of L^T K, without C
            vectors, values, _ = svd(root_s.mT @ root_d)
            turned = vectors * values.pow(t).unsqueeze(-2)
        else:
            product = root_s.mT @ root_d
            values, vectors = many_eigh(product @ product.mT)
            turned = vectors * values.clamp_min(0).pow(t / 2).unsqueeze(-2)
            accurate = values[:, -1] <= FORMED * values[:, 0]
        return solve_triangular(root_s.mT, turned, upper=True), accurate

    parts = torch.get_num_threads() if root_s.device.type == "cpu" else 1
    pairs = list(zip(root_s.chunk(parts), root_d.chunk(parts), strict=True))
    factors, accurate = zip(*side_by_side(solve, pairs, root_s.device), strict=True)
    return torch.cat(factors), torch.cat(accurate)


# Shapes, symmetry and rank.


def _flatten(first: Tensor, second: Tensor, t: float) -> tuple[torch.Size, list[Tensor], list[Tensor]]:
    """The shape of the result, both inputs as symmetric float64 matrices `(B, D, D)` with a mean diagonal of about 1,
    and the powers of 4 by which they were divided `(B,)`, so that their products neither underflow nor overflow.
    """
    if not 0 <= t <= 1:
        raise ValueError(f"t must be from 0 to 1, got {t}")
    shapes = tuple(first.shape), tuple(second.shape)
    if first.shape[-2:] != second.shape[-2:] or first.ndim < 2 or first.shape[-1] != first.shape[-2]:
        raise ValueError("both matrices must be (..., D, D) with the same D, got {} and {}".format(*shapes))
    shape = broadcast_shapes(*shapes)
    flat = (shape[:-2].numel(), *shape[-2:])
    matrices = [_symmetric(wide(one)).expand(shape).reshape(flat) for one in (first, second)]
    sizes = [(one.diagonal(dim1=1, dim2=2).abs() / max(flat[1], 1)).sum(1) for one in matrices]
    powers = [torch.where(size.isfinite() & (size > 0), size.log2().div(2).floor(), 0.0) for size in sizes]
    return shape, [one * torch.exp2(-2 * p)[:, None, None] for one, p in zip(matrices, powers, strict=True)], powers


def _symmetric(matrices: Tensor) -> Tensor:
    return (matrices + matrices.mT) / 2


def _outer(factors: Tensor) -> Tensor:
    """F F^T, symmetric to the last bit."""
    return _symmetric(factors @ factors.mT)


def _permute(matrices: Tensor, order: Tensor) -> Tensor:
    """Rows and columns of each matrix `(B, D, D)` in the given order `(B, D)`."""
    index = order.unsqueeze(-1) * order.shape[-1] + order.unsqueeze(-2)
    return matrices.flatten(1).gather(1, index.flatten(1)).view_as(matrices)


def _cholesky(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lower roots (the identity where there is none), which matrices have none, and whose rank may not be full.

    The squared pivot over the diagonal entry is the share of a feature's variance that the features before it do not
    explain; unlike a condition number it does not depend on the scales of the features.
    """
    roots, info = cholesky_ex(matrices)
    pivots = roots.diagonal(dim1=-2, dim2=-1)
    broken = (info != 0) | ~pivots.isfinite().all(-1)
    shares = pivots.square() / matrices.diagonal(dim1=-2, dim2=-1)
    identity = torch.eye(roots.shape[-1], dtype=roots.dtype, device=roots.device)
    return torch.where(broken[..., None, None], identity, roots), broken, broken | ~(shares > SUSPECT).all(-1)


def _true_indices(flags: Tensor) -> list[list[int]]:
    """The indices of the true flags, one list per row; none on the meta device."""
    rows = [[]] * len(flags) if flags.is_meta else read(flags)
    return [[number for number, flag in enumerate(row) if flag] for row in rows]


def _check_rank(
    matrices: Tensor, broken: list[int], suspect: list[int], name: str, shape: torch.Size, dtype: torch.dtype
) -> None:
    """Refuses matrices that are not positive definite, and names the rank: what `dtype` can distinguish from 0."""
    if not suspect:
        return
    names = [_element(name, number, shape) for number in suspect]
    values, _ = _scaled_eigh(matrices[suspect], names)
    size, eps = values.shape[-1], torch.finfo(values.dtype).eps
    for number, element, relative in zip(suspect, names, values / values[:, -1:].abs(), strict=True):
        if number in broken or relative[0] <= size * eps:
            noise = size * torch.finfo(dtype).eps
            what = "not positive definite" if relative[0] < -noise else "singular"
            rank = min(read((relative > noise).sum()), size - 1)
            raise NotPositiveDefinite(f"{element} is {what}: rank {rank} of {size}. Add a ridge to its diagonal")


def _semidefinite_roots(
    matrices: Tensor, broken: list[int], name: str, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """Square roots `(B', D, D)` of matrices that have no Cholesky root because they are singular."""
    names = [_element(name, number, shape) for number in broken]
    values, vectors = _scaled_eigh(matrices[broken], names)
    noise = values.shape[-1] * torch.finfo(dtype).eps
    for element, smallest, largest in zip(names, read(values[:, 0]), read(values[:, -1]), strict=True):
        if smallest < -noise * abs(largest):
            raise NotPositiveDefinite(f"{element} is not positive semi-definite, as a scatter of pairs must be")
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)


def _scaled_eigh(matrices: Tensor, names: list[str]) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the matrices scaled to a diagonal of ones, and their eigenvectors scaled back."""
    for name, finite in zip(names, read(matrices.isfinite().flatten(1).all(1)), strict=True):
        if not finite:
            raise ValueError(f"{name} has values that are not finite: clean the features it is made from")
    scale = matrices.diagonal(dim1=1, dim2=2).abs().sqrt()
    scale = torch.where(scale > 0, scale, 1)
    values, vectors = many_eigh(matrices / scale.unsqueeze(-1) / scale.unsqueeze(-2))
    return values, vectors * scale.unsqueeze(-1)


def _element(name: str, number: int, shape: torch.Size) -> str:
    """`similar`, `similar[3]` or `similar[1, 2]`: element `number` of a batch of matrices."""
    place = torch.unravel_index(torch.tensor(number), shape[:-2]) if len(shape) > 2 else ()
    return f"{name}{[read(index) for index in place] if place else ''}"
