"""Clouds: the rows of a list as a shape, whatever their labels (Banerjee, Dubey, Machchhar & Chakrabarti 2009).

The principal directions of a cloud say how its documents spread, and two queries are similar if their directions are.
A cloud of rank 0 (one document, or all of them equal) has no shape. Nothing here has a gradient.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import eigh, qr, svd, vector_norm

from torchrank.functional.chunks import Chunk, Cloud, centred, check_rows, cloud_chunks, side_by_side
from torchrank.functional.ragged import read, wide
from torchrank.functional.ranking import result_dtype

EXTRA, STEPS, PER_QR = 6, 16, 2  # of the subspace iteration: directions beside P, products, products between two QR
RANK_TOLERANCE = {torch.float64: 1e-12}  # share of the first eigenvalue that still counts; 1e-6 for all other dtypes
TILE = 512  # clouds on either side of a piece of the similarities: it stays in the cache


@torch.no_grad()
def cloud_pca(
    x: Tensor, offsets: Tensor, components: int, *, route: str = "exact", max_length: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Principal directions `(Q, P, D)` of the rows `x (N, D)` of each list as unit rows by falling variance, their
    variances `(Q, P)`, the total variance `(Q,)` (all with 1/n) and the rank `(Q,)`, at most P; zeros beyond the rank.

    `route="subspace"` is power iteration of P + 6 directions: faster, and wrong only where variances are nearly equal.
    The entry of largest size of each direction is positive. `max_length` is only checked: the chunks need all lengths.

    >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [7.0, 7.0]])
    >>> u, variances, total, rank = cloud_pca(x, torch.tensor([0, 2, 3]), 2)
    >>> u[0, 0], variances, rank
    (tensor([0.6000, 0.8000]), tensor([[6.2500, 0.0000],
            [0.0000, 0.0000]]), tensor([1, 0]))
    """
    check_rows(x)
    if route not in ROUTES:
        raise ValueError(f"route is {route!r}, choose one of {list(ROUTES)}")
    if components < 1:
        raise ValueError(f"components is {components}, a cloud has at least one direction")
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


def choose_components(eigenvalues: Tensor, total: Tensor, rank: Tensor, variance: float = 0.8, cap: int = 20) -> int:
    """Smallest number of directions that explain `variance` of the clouds of rank 1 or more, on average; at most `cap`
    and at most the P of `eigenvalues (Q, P)`.

    >>> choose_components(torch.tensor([[6.0, 2.0], [5.0, 4.0]]), torch.tensor([10.0, 10.0]), torch.tensor([2, 2]))
    2
    """
    width = eigenvalues.shape[1]
    place = torch.arange(1, width + 1, device=eigenvalues.device)
    explained = wide(eigenvalues).cumsum(1) / wide(total)[:, None]
    explained = torch.where((place >= rank[:, None]) & (rank[:, None] < width), 1.0, explained)
    short = explained[rank > 0].mean(0) < variance - 1e-12  # no cloud: nan, which is not short
    return min(read(short.sum()) + 1, cap, width)


# Principal directions.


Route = Callable[[Tensor, int, torch.dtype], tuple[Tensor, Tensor]]


def _decompose(
    cloud: Cloud, components: int, route: Route, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Directions, variances, total variance and rank of a chunk: from the smaller one of X X' / n and X' X / n."""
    x, width = cloud.x, cloud.x.shape[2]
    gram = x.shape[1] <= width
    matrices = (torch.bmm(x, x.mT) if gram else torch.bmm(x.mT, x)).div_(cloud.length[:, None, None])
    total = matrices.diagonal(dim1=1, dim2=2).sum(1)
    if total.device.type == "cpu" and not read(total.isfinite().all()):
        raise ValueError("a cloud has values that are not finite, or too large to be squared: clean or scale the rows")
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
    """Variances that are more than rounding; centring leaves n - 1 at most."""
    tiny = (torch.finfo(eigenvalues.dtype).eps * cloud.size).square() * width
    large = eigenvalues > RANK_TOLERANCE.get(dtype, 1e-6) * eigenvalues[:, :1]
    large &= eigenvalues[:, :1] > tiny[:, None]
    return torch.minimum(large.sum(1), cloud.length.long() - 1)


def _exact(matrices: Tensor, components: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, falling, and their eigenvectors as rows. LAPACK's divide and conquer gives up on a few
    matrices whose entries reach down to the smallest numbers; their svd is the same decomposition."""
    try:
        values, vectors = eigh(matrices)
    except torch.linalg.LinAlgError:
        _, values, rows = svd(matrices)
        return values[:, :components], rows[:, :components]
    return values[:, -components:].flip(1), vectors[:, :, -components:].flip(2).mT


def _subspace(matrices: Tensor, components: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Block power iteration in the dtype of the input, then Rayleigh-Ritz. Directions are rows: as columns the products
    take four times as long on the host. The start is the same for every cloud, whatever the padding."""
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
    """Similarity of all clouds `u (Q, P, D)` to all clouds `v (Q', P, D)`, `(Q, Q')`, from 0 to 1; a rank of 0 gives 0.

    `ordered`: sum of |u_p . v_p| over max(r, r'), which is eq. 5 of Banerjee et al. 2009 for clouds of full rank;
    `squared`: the same with squares; `subspace`: squares over all pairs of directions, so that their order does not
    count; `weighted`: |u_p . v_p| by sqrt(l_p l'_p) of the variances. The same tensors twice need half the products.

    >>> u, rank = torch.eye(3)[None, :2], torch.tensor([2])
    >>> [cloud_similarity(u, rank, u.flip(1), rank, kind=kind).item() for kind in ("ordered", "subspace")]
    [0.0, 1.0]
    """
    left, right = _sides(u, ranks, v, ranks_v, kind, eigenvalues, eigenvalues_v)
    size = len(u) * len(v) * left.u.dtype.itemsize
    if size > max_bytes:
        raise ValueError(
            f"similarities of {len(u)} x {len(v)} clouds need {size / 2**30:.1f} GiB, allowed are "
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
    """The k clouds of `v` most similar to each cloud of `u`, best first, of equal ones the first: similarities `(Q, k)`
    as in `cloud_similarity` and places in v `(Q, k)`. Needs the memory of a few tiles, however many clouds there are.

    A cloud of rank 0 in v is never a neighbour; places that nothing is left for have similarity 0 and index -1.

    >>> v = torch.eye(3)[:, None]
    >>> nearest_clouds(v[1:], torch.tensor([1, 1]), v, torch.tensor([1, 1, 0]))
    (tensor([[1.],
            [0.]]), tensor([[1],
            [0]]))
    """
    if not 1 <= k <= len(v):
        raise ValueError(f"k is {k}, choose from 1 to the {len(v)} clouds of v")
    left, right = _sides(u, ranks, v, ranks_v, kind, eigenvalues, eigenvalues_v)
    similarity, index = left.u.new_empty(len(u), k), ranks.new_empty(len(u), k, dtype=torch.int64)
    for top in range(0, len(u), TILE):
        rows = slice(top, top + TILE)
        similarity[rows], index[rows] = _nearest(left, right, ranks_v == 0, kind, top, k)
    return similarity, index


class _Side(NamedTuple):
    u: Tensor  # (P, Q, D) directions times their weights, 0 beyond the rank
    divisor: Tensor  # (Q,)


def _nearest(left: _Side, right: _Side, flat: Tensor, kind: str, top: int, k: int) -> tuple[Tensor, Tensor]:
    """The neighbours of a tile of rows, from row `top`: tile by tile of columns beside the k best so far."""
    height, width = left.u[:, top : top + TILE].shape[1], right.u.shape[1]
    best, index = left.u.new_full((height, k), -1), flat.new_full((height, k), -1, dtype=torch.int64)
    for begin in range(0, width, TILE):
        tile = _similarity(left, right, kind, top, begin)
        tile.masked_fill_(flat[begin : begin + TILE], -1)  # never better than what is there already
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
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, choose one of {list(KINDS)}")
    if u.ndim != 3 or v.ndim != 3 or u.shape[1:] != v.shape[1:]:
        raise ValueError(f"directions are {tuple(u.shape)} and {tuple(v.shape)}, both must be (Q, P, D) of equal P, D")
    if kind == "weighted" and (eigenvalues is None or eigenvalues_v is None):
        raise ValueError("kind='weighted' weighs by the variances: give eigenvalues and eigenvalues_v")
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
    """A tile of the similarities, from row `top` and column `begin`: one product per pair of directions."""
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
    """The k largest of each row and their places, of equal ones the first: `topk` leaves open which ones it takes."""
    if k == 1:
        return values.max(1, keepdim=True)
    width = values.shape[1]
    last = values.topk(k).values[:, -1:]
    above, level = values > last, values == last
    chosen = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
    place = torch.where(chosen, torch.arange(width, 0, -1, device=values.device), 0).topk(k).indices  # rising
    best, order = values.gather(1, place).sort(dim=1, descending=True, stable=True)
    return best, place.gather(1, order)
