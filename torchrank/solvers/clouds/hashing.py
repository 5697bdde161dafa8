"""Locality sensitive hashing of clouds (Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 3) as tensor operations.

There are m tables for each direction p. The bucket of a list in a table is given by the sides of h random hyperplanes
on which its direction lies; a query looks up both +u_p and -u_p, since eq. 5 ignores the sign. Buckets are ranges of
sorted codes, and votes are counted by sorting the lists found in them, so no intermediate tensor is as large as all
training lists. Votes alone are a poor guess of the nearest list, so the lists with most votes are compared exactly.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.clouds.directions import nearest_clouds
from torchrank.functional.ragged import read
from torchrank.functional.ranking import result_dtype

NUMBERS = 2**21  # sides of hyperplanes that are computed at once
ENTRIES = 2**21  # lists in buckets that are counted at once, unless a single query finds more
QUERIES = 256  # queries that are counted and compared at once


class HashTables(NamedTuple):
    """The lists of each table, sorted by code. Directions beyond the rank have the code 2^h, which no query has."""

    planes: Tensor  # (P, m, h, D)
    codes: Tensor  # (P, m, Q) rising; int32 up to 30 bits
    order: Tensor  # (P, m, Q) int32, the list of each code; rising among equal codes


class Candidates(NamedTuple):
    """Training lists that share a bucket with a query, sorted by query, then by list."""

    query: Tensor  # (n,)
    place: Tensor  # (n,) position of the training list
    votes: Tensor  # (n,) a_q of Figure 3


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
    step = max(1, NUMBERS // (components * tables * bits))
    for first in range(0, len(u), step):
        part = u[first : first + step].to(planes.dtype).permute(1, 2, 0)
        positive = torch.bmm(normals, part).unflatten(1, (tables, bits)) >= 0
        codes[:, :, first : first + step] = (positive.long() << place).sum(2)
    return codes


def complement(codes: Tensor, bits: int) -> Tensor:
    """Codes of the opposite directions, 2^h - 1 - code: all bits are inverted.

    >>> complement(torch.tensor([0, 5, 7]), 3)
    tensor([7, 2, 0])
    """
    return ((1 << bits) - 1) - codes


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
        found = hash_codes(u[:, p : p + 1], planes[p : p + 1])[0].masked_fill_(ranks <= p, 2**bits)
        codes[p], order[p] = found.to(kind).sort(dim=1, stable=True)
    return HashTables(planes, codes, order)


@torch.no_grad()
def count_candidates(tables: HashTables, v: Tensor, ranks_v: Tensor) -> Candidates:
    """Training lists in the buckets of queries `v (T, P, D)`, and their votes: the number of tables in which +v_p or
    -v_p, whichever is more often, shares a bucket with them, summed over p.

    >>> tables = build_tables(torch.tensor([[[1.0]], [[-1.0]]]), torch.tensor([1, 1]), torch.ones(1, 3, 2, 1))
    >>> count_candidates(tables, torch.tensor([[[1.0]]]), torch.tensor([1])).votes
    tensor([3, 3])
    """
    parts = [part._replace(query=part.query + begin) for begin, _, part in _counted(tables, v, ranks_v)]
    none = Candidates(*(torch.empty(0, dtype=torch.int64, device=v.device) for _ in Candidates._fields))
    return Candidates(*(torch.cat(each) for each in zip(none, *parts, strict=True)))


@torch.no_grad()
def hashed_nearest(
    u: Tensor, ranks: Tensor, tables: HashTables, v: Tensor, ranks_v: Tensor, k: int = 1, *, rerank: int = 50
) -> tuple[Tensor, Tensor, int]:
    """The k clouds of `u`, which are in `tables`, most similar to each query of `v (T, P, D)` by eq. 5; best first, of
    equal ones the first. Only the `rerank` lists with most votes are compared.

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
    similarity = v.new_zeros(len(v), k, dtype=result_dtype(v))
    index = torch.full((len(v), k), -1, device=v.device)
    for begin, end, candidates in _counted(tables, v, ranks_v):
        some = _most_votes(candidates, end - begin, max(rerank, 1))
        found = _similarity(u, ranks, some, v[begin:end], ranks_v[begin:end])
        best, place = found.sort(dim=1, descending=True, stable=True)
        similarity[begin:end], index[begin:end] = best[:, :k], some.gather(1, place[:, :k])
    missing = (index[:, -1] < 0).nonzero().flatten()
    if len(missing):
        similarity[missing], index[missing] = nearest_clouds(v[missing], ranks_v[missing], u, ranks, k)
    return similarity, index, len(missing)


def _counted(tables: HashTables, v: Tensor, ranks_v: Tensor) -> Iterator[tuple[int, int, Candidates]]:
    """For each block its first query, its last one (exclusive), and its candidates, with queries counted from 0."""
    components, bits = tables.planes.shape[0], tables.planes.shape[2]
    for top in range(0, len(v), QUERIES):
        codes = hash_codes(v[top : top + QUERIES], tables.planes)
        both = torch.stack([codes, complement(codes, bits)], 3).to(tables.codes.dtype)  # (P, m, T, 2)
        low, high = (torch.searchsorted(tables.codes, both.flatten(2), right=right) for right in (False, True))
        used = torch.arange(components, device=v.device)[:, None] < ranks_v[top : top + QUERIES]
        sizes = (high - low).view(both.shape) * used[:, None, :, None]
        low, sizes = (part.permute(2, 0, 1, 3).contiguous() for part in (low.view(both.shape), sizes))  # (T, P, m, 2)
        for begin, end in _blocks(read(sizes.flatten(1).sum(1).cumsum(0))):
            yield top + begin, top + end, _count(tables.order, low[begin:end], sizes[begin:end])


def _blocks(ends: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive queries, at least one, with at most ENTRIES lists in total; `ends` are running sums."""
    begin = 0
    while begin < len(ends):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, bisect_right(ends, before + ENTRIES))
        yield begin, end
        begin = end


def _count(order: Tensor, low: Tensor, sizes: Tensor) -> Candidates:
    """Votes in the buckets from `low` to `low + sizes` (T, P, m, 2).

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
    met = order.flatten()[place].long() * (components * 2)
    names = met.add_(name.repeat_interleave(flat, output_size=total)).sort().values
    names, counts = names.unique_consecutive(return_counts=True)
    names, group = (names // 2).unique_consecutive(return_inverse=True)
    counts = counts.new_zeros(len(names)).scatter_reduce_(0, group, counts, "amax")
    names, group = (names // components).unique_consecutive(return_inverse=True)
    votes = counts.new_zeros(len(names)).index_add_(0, group, counts)
    return Candidates(names // lists, names % lists, votes)


def _most_votes(candidates: Candidates, queries: int, rerank: int) -> Tensor:
    """The lists (T, R) with most votes, of equal ones the first; in rising order, padded with -1."""
    query, place, votes = candidates
    order = ((query << 32) - votes).argsort(stable=True)
    count = query.bincount(minlength=queries)
    first = (count.cumsum(0) - count)[query]  # sorting keeps queries in place
    number = torch.arange(len(query), device=query.device)
    kept = order[number - first < rerank].sort().values
    query, place = query[kept], place[kept]
    count = count.clamp(max=rerank)
    number = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count)[query]
    return place.new_full((queries, rerank), -1).index_put_((query, number), place)


def _similarity(u: Tensor, ranks: Tensor, index: Tensor, v: Tensor, ranks_v: Tensor) -> Tensor:
    """Similarity (T, R) of each query to its candidates by eq. 5; -1 where there is none."""
    dtype, components = result_dtype(v), v.shape[1]
    rank, rank_v = (part.clamp(max=components)[..., None] for part in (ranks[index], ranks_v[:, None]))
    cosines = (u[index].to(dtype) * v[:, None].to(dtype)).sum(3).abs_()
    shared = torch.arange(components, device=v.device) < torch.minimum(rank, rank_v)
    found = (cosines * shared).sum(2) / torch.maximum(rank, rank_v).squeeze(2).clamp(min=1)
    return found.clamp_(max=1).masked_fill_(index < 0, -1)
