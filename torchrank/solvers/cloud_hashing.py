"""Locality sensitive hashing of clouds (Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 3) as tensor operations.

There are m tables for each direction p. The bucket of a list in a table is given by the sides of h random hyperplanes
on which its direction lies; a query looks up both +u_p and -u_p, since eq. 5 ignores the sign. Buckets are ranges of
sorted codes, and votes are counted by sorting the lists found in them, so no intermediate tensor is as large as all
training lists. Votes alone are a poor guess of the nearest list, so the lists with most votes are compared exactly.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.clouds import nearest_clouds
from torchrank.functional.ranking import result_dtype

SIDES = 2**21  # sides of hyperplanes that are computed at once
ENTRIES = 2**21  # lists in buckets that are counted at once, unless a single query finds more
QUERIES = 256  # queries that are counted and compared at once


class HashTables(NamedTuple):
    """The lists of each table, sorted by code. Directions beyond the rank have the code 2^h, which no query has."""

    planes: Tensor  # (P, m, h, D)
    codes: Tensor  # (P, m, Q) rising; int32 up to 30 bits
    order: Tensor  # (P, m, Q) int32, the list of each code; rising among equal codes


def make_planes(components: int, tables: int, bits: int, num_features: int, seed: int) -> Tensor:
    """Normals `(P, m, h, D)` of the hyperplanes, float64: independent for each direction and table."""
    if not 1 <= bits <= 62:
        raise ValueError(f"bits must be from 1 to 62, got {bits}")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(components, tables, bits, num_features, dtype=torch.float64, generator=generator)


@torch.no_grad()
def hash_codes(u: Tensor, planes: Tensor) -> Tensor:
    """Codes `(P, m, Q)` of directions `u (Q, P, D)`: bit b is 1 on the positive side of plane b and on the plane.

    >>> planes = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> hash_codes(torch.tensor([[[1.0, -1.0]], [[-1.0, 0.0]]]), planes)
    tensor([[[1, 2]]])
    """
    components, tables, bits, features = planes.shape
    if u.shape[1:] != (components, features):
        raise ValueError(f"directions must be (Q, {components}, {features}) for these planes, got {tuple(u.shape)}")
    codes = torch.empty(components, tables, len(u), dtype=torch.int64, device=u.device)
    normals, place = planes.flatten(1, 2), torch.arange(bits, device=u.device)[:, None]
    step = max(1, SIDES // (components * tables * bits))
    for first in range(0, len(u), step):
        part = u[first : first + step].to(planes.dtype).permute(1, 2, 0)
        positive = torch.bmm(normals, part).unflatten(1, (tables, bits)) >= 0
        codes[:, :, first : first + step] = (positive.long() << place).sum(2)
    return codes


@torch.no_grad()
def build_tables(u: Tensor, ranks: Tensor, planes: Tensor) -> HashTables:
    """Hash tables of training lists `u (Q, P, D)`; directions beyond the rank of a list are in no bucket.

    >>> build_tables(torch.tensor([[[1.0]], [[-1.0]], [[2.0]]]), torch.tensor([1, 1, 1]), torch.ones(1, 1, 1, 1)).order
    tensor([[[1, 0, 2]]], dtype=torch.int32)
    """
    components, tables, bits, _ = planes.shape
    shape, kind = (components, tables, len(u)), torch.int32 if bits < 31 else torch.int64
    codes, order = u.new_empty(shape, dtype=kind), u.new_empty(shape, dtype=torch.int32)
    for p in range(components):
        all_codes = hash_codes(u[:, p : p + 1], planes[p : p + 1])[0].masked_fill_(ranks <= p, 2**bits)
        codes[p], order[p] = all_codes.to(kind).sort(dim=1, stable=True)
    return HashTables(planes, codes, order)


@torch.no_grad()
def hashed_nearest(
    u: Tensor, ranks: Tensor, tables: HashTables, v: Tensor, ranks_v: Tensor, k: int = 1, *, rerank: int = 50
) -> tuple[Tensor, Tensor, int]:
    """The k clouds of `u`, which are in `tables`, most similar to each query of `v (T, P, D)` by eq. 5; best first, of
    equal ones the first. Only the `rerank` lists with most votes are compared: the votes of a list are the number of
    tables in which +v_p or -v_p, whichever is more often, shares a bucket with it, summed over p.

    Returns similarities `(T, k)`, positions in u `(T, k)`, and the number of queries with fewer than k candidates, for
    which `nearest_clouds` has searched all lists.

    >>> u, rank = torch.eye(3)[:, None], torch.tensor([1, 1, 1])
    >>> tables = build_tables(u, rank, make_planes(1, 4, 2, 3, seed=0))
    >>> hashed_nearest(u, rank, tables, -u[1:], rank[1:])
    (tensor([[1.],
            [1.]]), tensor([[1],
            [2]]), 0)
    """
    if len(u) != tables.order.shape[2]:
        raise ValueError(f"u must be the {tables.order.shape[2]} lists of the tables, got {len(u)}")
    if rerank < k:
        raise ValueError(f"rerank must be >= k = {k}, got {rerank}")
    if len(v) <= QUERIES:
        low, sizes = _buckets(tables, v, ranks_v)
        if len(v) < 2 or sizes.sum() <= ENTRIES:
            candidates = _most_votes(*_count(tables.order, low, sizes), len(v), max(rerank, 1))
            similarity, order = _similarity(u, ranks, candidates, v, ranks_v).sort(dim=1, descending=True, stable=True)
            similarity, index = similarity[:, :k], candidates.gather(1, order[:, :k])
            missing = (index[:, -1] < 0).nonzero().flatten()
            if len(missing):
                similarity[missing], index[missing] = nearest_clouds(v[missing], ranks_v[missing], u, ranks, k)
            return similarity, index, len(missing)
    half = len(v) // 2
    one, other = (
        hashed_nearest(u, ranks, tables, v[part], ranks_v[part], k, rerank=rerank)
        for part in (slice(half), slice(half, None))
    )
    return torch.cat((one[0], other[0])), torch.cat((one[1], other[1])), one[2] + other[2]


def _buckets(tables: HashTables, v: Tensor, ranks_v: Tensor) -> tuple[Tensor, Tensor]:
    """Where the buckets of +v and -v begin in the tables, and their sizes, (T, P, m, 2) each."""
    components, _, bits, _ = tables.planes.shape
    codes = hash_codes(v, tables.planes)
    both = torch.stack([codes, (1 << bits) - 1 - codes], 3).to(tables.codes.dtype)  # (P, m, T, 2)
    low, high = (torch.searchsorted(tables.codes, both.flatten(2), right=right) for right in (False, True))
    used = torch.arange(components, device=v.device)[:, None] < ranks_v
    sizes = (high - low).view(both.shape) * used[:, None, :, None]
    return low.view(both.shape).permute(2, 0, 1, 3), sizes.permute(2, 0, 1, 3)


def _count(order: Tensor, low: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Votes in the buckets from `low` to `low + sizes` (T, P, m, 2): queries (n,), their lists (n,), and the votes of
    these (n,), sorted by query, then by list.

    One integer encodes query, list, direction and sign. After sorting, runs of equal integers are the counts CP and CM;
    then follow their maxima over the sign, and the sums of these over directions.
    """
    components, tables = sizes.shape[1:3]
    lists, flat = order.shape[2], sizes.flatten()
    run = torch.arange(len(flat), device=flat.device)
    sign, table, query = run % 2, run // 2 % (components * tables), run // (2 * components * tables)
    start = table * lists + low.flatten() - (flat.cumsum(0) - flat)
    name = query * (lists * components * 2) + table // tables * 2 + sign
    total = int(flat.sum())
    place = start.repeat_interleave(flat, output_size=total) + torch.arange(total, device=flat.device)
    names = order.flatten()[place].long() * (components * 2)
    names = names.add_(name.repeat_interleave(flat, output_size=total)).sort().values
    names, counts = names.unique_consecutive(return_counts=True)
    names, group = (names // 2).unique_consecutive(return_inverse=True)
    counts = counts.new_zeros(len(names)).scatter_reduce_(0, group, counts, "amax")
    names, group = (names // components).unique_consecutive(return_inverse=True)
    votes = counts.new_zeros(len(names)).index_add_(0, group, counts)
    return names // lists, names % lists, votes


def _most_votes(query: Tensor, lists: Tensor, votes: Tensor, num_queries: int, most: int) -> Tensor:
    """The lists (T, R) with most votes, of equal ones the first; in rising order, padded with -1."""
    order, ends = ((query << 32) - votes).argsort(stable=True), query.bincount(minlength=num_queries).cumsum(0)
    first = torch.nn.functional.pad(ends, (1, 0))[query]  # sorting keeps queries in place
    kept = order[torch.arange(len(query), device=query.device) - first < most].sort().values
    query, lists = query[kept], lists[kept]
    ends = query.bincount(minlength=num_queries).cumsum(0)
    number = torch.arange(len(query), device=query.device) - torch.nn.functional.pad(ends, (1, 0))[query]
    return lists.new_full((num_queries, most), -1).index_put_((query, number), lists)


def _similarity(u: Tensor, ranks: Tensor, index: Tensor, v: Tensor, ranks_v: Tensor) -> Tensor:
    """Similarity (T, R) of each query to its candidates by eq. 5; -1 where there is none."""
    dtype, components = result_dtype(v), v.shape[1]
    rank, rank_v = (part.clamp(max=components)[..., None] for part in (ranks[index], ranks_v[:, None]))
    cosines = (u[index].to(dtype) * v[:, None].to(dtype)).sum(3).abs_()
    shared = torch.arange(components, device=v.device) < torch.minimum(rank, rank_v)
    similarity = (cosines * shared).sum(2) / torch.maximum(rank, rank_v).squeeze(2).clamp(min=1)
    return similarity.clamp_(max=1).masked_fill_(index < 0, -1)
