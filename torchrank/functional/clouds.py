"""Clouds: the rows of a list seen as a shape, without labels (Banerjee, Dubey, Machchhar & Chakrabarti 2009).

The principal directions of a cloud describe how its documents spread; two queries are similar if their directions are.
A cloud of rank 0 (one document, or only equal ones) has no shape. Nothing here has a gradient.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import qr, svd, vector_norm

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.batching import Chunk, Cloud, centred, check_rows, cloud_chunks
from torchrank.functional.ragged import read, wide
from torchrank.functional.ranking import result_dtype
from torchrank.functional.threads import many_eigh as eigh
from torchrank.functional.threads import side_by_side

EXTRA, STEPS, PER_QR = 6, 16, 2  # subspace iteration: directions in addition to P, products, products between two QR
RANK_TOLERANCE = {torch.float64: 1e-12}  # share of the first eigenvalue that still counts; 1e-6 for all other dtypes
TILE = 512  # clouds on either side of a tile of similarities, which stays in the cache


@takes_arrays
@torch.no_grad()
def cloud_pca(
    x: Tensor, offsets: Tensor, components: int, *, route: str = "exact", max_length: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Principal directions of the rows of each list.

    Args:
        x: the rows of all lists, `(N, D)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        components: the number P of directions.
        route: "exact", or "subspace": power iteration of P + 6 directions, which is faster, and wrong only where
            variances are nearly equal.
        max_length: an upper bound of the list lengths, which is only checked: all lengths are needed.

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
    check_rows(x)
    check_choice(ROUTES, route=route)
    if components < 1:
        raise ValueError(f"components must be >= 1, got {components}")
    (lists, width), dtype = (len(offsets) - 1, x.shape[1]), result_dtype(x)
    u, eigenvalues = x.new_zeros(lists, components, width, dtype=dtype), x.new_zeros(lists, components, dtype=dtype)
    total, rank = x.new_zeros(lists, dtype=dtype), offsets.new_zeros(lists)

    def solve(chunk: Chunk) -> None:
        cloud = centred(x, offsets, chunk)
        found = _decompose(cloud, components, ROUTES[route], x.dtype)
        for whole, part in zip((u, eigenvalues, total, rank), found, strict=True):
            whole[chunk.lists, ...] = part.to(whole.dtype)

    side_by_side(solve, cloud_chunks(x, offsets, shortest=2, max_length=max_length), x.device)
    return u, eigenvalues, total, rank


@takes_arrays
def choose_components(eigenvalues: Tensor, total: Tensor, rank: Tensor, variance: float = 0.8, cap: int = 20) -> int:
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
    short = explained[rank > 0].mean(0) < variance - 1e-12  # without clouds nan, which is not short
    too_few: int = read(short.sum())
    return min(too_few + 1, cap, width)


# Principal directions.


Route = Callable[[Tensor, int, torch.dtype], tuple[Tensor, Tensor]]


def _decompose(
    cloud: Cloud, components: int, route: Route, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Directions, variances, total variance and rank of a chunk, from the smaller one of X X' / n and X' X / n."""
    x, width = cloud.x, cloud.x.shape[2]
    gram = x.shape[1] <= width
    matrices = (torch.bmm(x, x.mT) if gram else torch.bmm(x.mT, x)).div_(cloud.length[:, None, None])
    total = matrices.diagonal(dim1=1, dim2=2).sum(1)
    if total.device.type == "cpu" and not read(total.isfinite().all()):
        raise ValueError("a cloud has values that are not finite or too large to be squared: clean or scale the rows")
    eigenvalues, vectors = route(matrices, components, dtype)  # (B, k), (B, k, L or D), k <= P
    rank = _rank(eigenvalues, cloud, width, dtype)
    inside = torch.arange(eigenvalues.shape[1], device=x.device) < rank[:, None]
    u = torch.bmm(vectors, x) if gram else vectors
    u = u / torch.where(inside, vector_norm(u, dim=2), 1).unsqueeze(2)
    largest = u.abs().argmax(2, keepdim=True)
    u = torch.where(inside.unsqueeze(2), u * u.gather(2, largest).sign(), 0)
    missing = components - eigenvalues.shape[1]
    pad = torch.nn.functional.pad
    return pad(u, (0, 0, 0, missing)), pad(torch.where(inside, eigenvalues, 0), (0, missing)), total, rank


def _rank(eigenvalues: Tensor, cloud: Cloud, width: int, dtype: torch.dtype) -> Tensor:
    """The number of variances that are more than rounding errors; centring leaves at most n - 1."""
    tiny = (torch.finfo(eigenvalues.dtype).eps * cloud.size).square() * width
    large = eigenvalues > RANK_TOLERANCE.get(dtype, 1e-6) * eigenvalues[:, :1]
    large &= eigenvalues[:, :1] > tiny[:, None]
    return torch.minimum(large.sum(1), cloud.length.long() - 1)


def _exact(matrices: Tensor, components: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues in descending order, and their eigenvectors as rows.

    LAPACK's divide and conquer fails on a few matrices with entries as small as the smallest floats; their svd is the
    same decomposition.
    """
    try:
        values, vectors = eigh(matrices)
    except RuntimeError:  # torch.linalg.LinAlgError is one
        _, values, rows = svd(matrices)
        return values[:, :components], rows[:, :components]
    return values[:, -components:].flip(1), vectors[:, :, -components:].flip(2).mT


def _subspace(matrices: Tensor, components: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Block power iteration in the dtype of the input, then Rayleigh-Ritz.

    Directions are rows: as columns the products take four times as long on the CPU. The start is the same for every
    cloud, whatever its padding.
    """
    size, block = matrices.shape[1], components + EXTRA
    if block >= size:
        return _exact(matrices, components, dtype)
    start = torch.empty(-(-size // 16) * 16, block, dtype=torch.float64)  # torch draws 16 numbers at a time
    start = start.normal_(generator=torch.Generator().manual_seed(0))[:size]
    scale = matrices.diagonal(dim1=1, dim2=2).sum(1).clamp_min(torch.finfo(matrices.dtype).tiny)
    powers = (matrices / scale[:, None, None]).to(torch.promote_types(dtype, torch.float32))
    u = start.to(powers).T.expand(len(powers), block, size)
    for step in range(1, STEPS + 1):
        u = torch.bmm(u, powers)
        if step % PER_QR == 0:
            u = qr(u.mT)[0].mT
    u = qr(u.to(matrices.dtype).mT)[0].mT
    values, turn = _exact(torch.bmm(torch.bmm(u, matrices), u.mT), components, dtype)
    return values, torch.bmm(turn, u)


ROUTES: dict[str, Route] = {"exact": _exact, "subspace": _subspace}


# Similarities.


@takes_arrays
@torch.no_grad()
def cloud_similarity(
    u: Tensor,
    ranks: Tensor,
    v: Tensor,
    ranks_v: Tensor,
    *,
    kind: str = "ordered",
    eigenvalues: Tensor | None = None,
    eigenvalues_v: Tensor | None = None,
    max_bytes: int = 2**31,
) -> Tensor:
    """Similarity of all clouds of one set to all of another, from 0 to 1. The same set twice takes half the products.

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
    left, right = _sides(u, ranks, v, ranks_v, kind, eigenvalues, eigenvalues_v)
    size = len(u) * len(v) * left.u.dtype.itemsize
    if size > max_bytes:
        raise ValueError(
            f"similarities of {len(u)} x {len(v)} clouds need {size / 2**30:.1f} GiB, but max_bytes allows "
            f"{max_bytes / 2**30:.1f}: use nearest_clouds, or raise max_bytes"
        )
    found = left.u.new_empty(len(u), len(v))
    for top in range(0, len(u), TILE):
        for begin in range(top if left is right else 0, len(v), TILE):
            tile = _similarity(left, right, kind, top, begin)
            if left is right:
                tile = tile.triu_().add_(tile.triu(1).T) if begin == top else tile
                found[begin : begin + TILE, top : top + TILE] = tile.T
            found[top : top + TILE, begin : begin + TILE] = tile
    return found


@takes_arrays
@torch.no_grad()
def nearest_clouds(
    u: Tensor,
    ranks: Tensor,
    v: Tensor,
    ranks_v: Tensor,
    k: int = 1,
    *,
    kind: str = "ordered",
    eigenvalues: Tensor | None = None,
    eigenvalues_v: Tensor | None = None,
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
    left, right = _sides(u, ranks, v, ranks_v, kind, eigenvalues, eigenvalues_v)
    similarity, index = left.u.new_empty(len(u), k), ranks.new_empty(len(u), k, dtype=torch.int64)
    for top in range(0, len(u), TILE):
        rows = slice(top, top + TILE)
        similarity[rows], index[rows] = _nearest(left, right, ranks_v == 0, kind, top, k)
    return similarity, index


class _Side(NamedTuple):
    """One of the two sets of clouds."""

    u: Tensor  # (P, Q, D) directions times their weights, 0 beyond the rank
    divisor: Tensor  # (Q,)


def _nearest(left: _Side, right: _Side, flat: Tensor, kind: str, top: int, k: int) -> tuple[Tensor, Tensor]:
    """The neighbours of a tile of rows, from row `top`: each tile of columns is merged with the k best so far."""
    height, width = left.u[:, top : top + TILE].shape[1], right.u.shape[1]
    best, index = left.u.new_full((height, k), -1), flat.new_full((height, k), -1, dtype=torch.int64)
    for begin in range(0, width, TILE):
        tile = _similarity(left, right, kind, top, begin)
        tile.masked_fill_(flat[begin : begin + TILE], -1)  # not better than the start
        place = torch.arange(begin, begin + tile.shape[1], device=index.device).expand(tile.shape)
        best, chosen = _first_largest(torch.cat([best, tile], 1), k)
        index = torch.cat([index, place], 1).gather(1, chosen)
    return best.clamp_(min=0), index


def _sides(
    u: Tensor,
    ranks: Tensor,
    v: Tensor,
    ranks_v: Tensor,
    kind: str,
    eigenvalues: Tensor | None,
    eigenvalues_v: Tensor | None,
) -> tuple[_Side, _Side]:
    check_choice(KINDS, kind=kind)
    if u.ndim != 3 or v.ndim != 3 or u.shape[1:] != v.shape[1:]:
        raise ValueError(f"u and v must be (Q, P, D) with the same P and D, got {tuple(u.shape)} and {tuple(v.shape)}")
    if kind == "weighted" and (eigenvalues is None or eigenvalues_v is None):
        raise ValueError("kind='weighted' needs the variances: give eigenvalues and eigenvalues_v")
    if kind != "weighted":
        eigenvalues = eigenvalues_v = None
    left = _side(u, ranks, eigenvalues)
    same = u is v and ranks is ranks_v and eigenvalues is eigenvalues_v
    return left, left if same else _side(v, ranks_v, eigenvalues_v)


def _side(u: Tensor, ranks: Tensor, eigenvalues: Tensor | None) -> _Side:
    dtype, ranks = result_dtype(u), ranks.clamp(max=u.shape[1])
    weights = (torch.arange(u.shape[1], device=u.device) < ranks[:, None]).to(dtype)
    divisor = ranks.to(dtype)
    if eigenvalues is not None:
        shares = weights * eigenvalues.to(dtype)
        weights = (shares / shares.sum(1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)).sqrt()
        divisor = torch.ones_like(divisor)
    return _Side((u.to(dtype) * weights.unsqueeze(2)).transpose(0, 1).contiguous(), divisor)


def _similarity(left: _Side, right: _Side, kind: str, top: int, begin: int) -> Tensor:
    """A tile of the similarities from row `top` and column `begin`, by one product per pair of directions."""
    u, v = left.u[:, top : top + TILE], right.u[:, begin : begin + TILE]
    total = u.new_zeros(u.shape[1], v.shape[1])
    for p, q in KINDS[kind](len(u)):
        cosines = u[p] @ v[q].T
        if kind in ("squared", "subspace"):
            total.addcmul_(cosines, cosines)
        else:
            total.add_(cosines.abs_())
    divisor = torch.maximum(left.divisor[top : top + TILE, None], right.divisor[begin : begin + TILE])
    return total.div_(divisor.clamp_(min=1)).clamp_(max=1)


def _in_turn(components: int) -> Iterable[tuple[int, int]]:
    return zip(range(components), range(components), strict=True)


def _all_pairs(components: int) -> Iterable[tuple[int, int]]:
    return product(range(components), range(components))


KINDS = {"ordered": _in_turn, "squared": _in_turn, "subspace": _all_pairs, "weighted": _in_turn}


def _first_largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row and their indices, the first of equal ones: `topk` may take any of them."""
    if k == 1:
        return values.max(1, keepdim=True)
    width = values.shape[1]
    last = values.topk(k).values[:, -1:]
    above, level = values > last, values == last
    chosen = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
    place = torch.where(chosen, torch.arange(width, 0, -1, device=values.device), 0).topk(k).indices  # ascending
    best, order = values.gather(1, place).sort(dim=1, descending=True, stable=True)
    return best, place.gather(1, order)
