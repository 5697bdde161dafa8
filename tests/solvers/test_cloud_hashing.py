"""Hash tables against the pseudocode: Figure 3 of Banerjee, Dubey, Machchhar & Chakrabarti 2009 in loops and dicts.

Bit by bit codes, tables that are filled list by list, counters CP and CM of every direction; then the exact
similarity (eq. 5) of the candidates with the most votes. Edges and what is refused stand at the end.
"""

import collections
import itertools

import numpy as np
import pytest
import torch

from torchrank.functional import cloud_similarity, nearest_clouds
from torchrank.solvers.cloud_hashing import (
    build_tables,
    hash_codes,
    hashed_nearest,
    make_planes,
)

# ---- plain forms -----------------------------------------------------------------------------------------------------


def directions(count, seed, *, components=3, features=6, centres=4, spread=0.3):
    """Clouds around a few centres, with signs by chance; ranks from 0 to P."""
    draw = np.random.default_rng(seed)
    middle = np.random.default_rng(0).normal(size=(centres, components, features))
    u = middle[draw.integers(0, centres, count)] + spread * draw.normal(size=(count, components, features))
    u *= draw.choice([-1, 1], size=(count, components, 1))
    ranks = draw.integers(0, components + 1, count)
    u = u / np.linalg.norm(u, axis=2, keepdims=True) * (np.arange(components) < ranks[:, None])[:, :, None]
    return torch.tensor(u), torch.tensor(ranks)


def plain_code(direction, planes):
    return sum(2**bit for bit, plane in enumerate(planes) if direction @ plane >= 0)


def plain_tables(u, ranks, planes):
    components, tables = planes.shape[:2]
    found = [[collections.defaultdict(list) for _ in range(tables)] for _ in range(components)]
    for number, (cloud, rank) in enumerate(zip(u, ranks, strict=True)):
        for p, j in itertools.product(range(rank), range(tables)):
            found[p][j][plain_code(cloud[p], planes[p, j])].append(number)
    return found


def plain_votes(filled, planes, cloud, rank):
    """{training list: a_q} of one query."""
    plus, minus, candidates = collections.Counter(), collections.Counter(), set()
    for p, j in itertools.product(range(rank), range(planes.shape[1])):
        for counter, sign in ((plus, 1), (minus, -1)):
            for number in filled[p][j].get(plain_code(sign * cloud[p], planes[p, j]), []):
                candidates.add(number)
                counter[p, number] += 1
    return {q: sum(max(plus[p, q], minus[p, q]) for p in range(rank)) for q in candidates}


def plain_similarity(one, r, other, s):
    return sum(abs(one[p] @ other[p]) for p in range(min(r, s))) / max(r, s)


def problem(seed, lists=40, queries=12, bits=4, tables=3):
    u, ranks = directions(lists, seed)
    v, ranks_v = directions(queries, seed + 100)
    return u, ranks, v, ranks_v, make_planes(3, tables, bits, 6, seed)


# ---- against the plain forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 5, 30, 31, 62])
def test_codes_bit_by_bit(bits):
    u, _ = directions(9, 1)
    planes = make_planes(3, 2, bits, 6, 0)
    found = hash_codes(u, planes)
    assert planes.shape == (3, 2, bits, 6) and planes.dtype == torch.float64
    assert found.shape == (3, 2, 9) and found.dtype == torch.int64
    for p, j, q in np.ndindex(3, 2, 9):
        assert found[p, j, q] == plain_code(u[q, p].numpy(), planes[p, j].numpy())


@pytest.mark.parametrize("k, rerank", [(1, 1), (1, 3), (1, 40), (3, 3), (3, 40)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_those_with_most_votes(seed, k, rerank):
    u, ranks, v, ranks_v, planes = problem(seed + 10, bits=6, tables=2)
    filled = plain_tables(u.numpy(), ranks.tolist(), planes.numpy())
    tables = build_tables(u, ranks, planes)
    found, index, exact_searches = hashed_nearest(u, ranks, tables, v, ranks_v, k, rerank=rerank)
    exact, places = nearest_clouds(v, ranks_v, u, ranks, k)
    searches = 0
    for t, (cloud, rank) in enumerate(zip(v.numpy(), ranks_v.tolist(), strict=True)):
        votes = plain_votes(filled, planes.numpy(), cloud, rank)
        if len(votes) < k:
            searches += 1
            assert index[t].tolist() == places[t].tolist()
            np.testing.assert_allclose(found[t], exact[t], rtol=0, atol=1e-12)
            continue
        most = sorted(votes, key=lambda q: (-votes[q], q))[:rerank]
        similarity = {q: plain_similarity(cloud, rank, u[q].numpy(), ranks[q].item()) for q in most}
        best = sorted(most, key=lambda q: (-similarity[q], q))[:k]
        assert index[t].tolist() == best
        np.testing.assert_allclose(found[t], [similarity[q] for q in best], rtol=0, atol=1e-12)
    assert exact_searches == searches


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4])
def test_few_bits_and_many_tables_find_what_exact_search_finds(k):
    """With one bit a query meets every list with a direction in common, at +u or at -u."""
    u, ranks = directions(200, 2)
    v, ranks_v = directions(30, 3)
    ranks_v.clamp_(min=1)
    tables = build_tables(u, ranks, make_planes(3, 4, 1, 6, 0))
    found, index, searches = hashed_nearest(u, ranks, tables, v, ranks_v, k, rerank=200)
    similarity, places = nearest_clouds(v, ranks_v, u, ranks, k)
    assert torch.equal(index, places) and searches == 0
    torch.testing.assert_close(found, similarity, rtol=0, atol=1e-12)


def test_equal_clouds_the_first_one_wins():
    u = torch.randn(10, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).repeat(3, 1, 1)
    u, ranks = u / u.norm(dim=2, keepdim=True), torch.full((30,), 3)
    tables = build_tables(u, ranks, make_planes(3, 4, 6, 6, 0))
    similarity, index, _ = hashed_nearest(u, ranks, tables, -u, ranks, 2, rerank=9)
    assert index.T.tolist() == [list(range(10)) * 3, list(range(10, 20)) * 3]
    torch.testing.assert_close(similarity, torch.ones(30, 2, dtype=torch.float64))


def test_more_queries_and_entries_than_are_counted_at_once():
    """With one bit half of the lists are in a bucket."""
    u, ranks, v, ranks_v, planes = problem(5, lists=1500, queries=300, bits=1)
    tables = build_tables(u, ranks, planes)
    whole = hashed_nearest(u, ranks, tables, v, ranks_v, 2, rerank=5)
    alone = [hashed_nearest(u, ranks, tables, v[t : t + 1], ranks_v[t : t + 1], 2, rerank=5) for t in range(300)]
    for place in (0, 1):
        assert torch.equal(torch.cat([part[place] for part in alone]), whole[place])
    assert sum(searches for _, _, searches in alone) == whole[2]


def test_collisions_are_as_frequent_as_the_angle_says():
    """(1 - theta / pi)^h of the tables, and of the opposite direction (theta / pi)^h."""
    u = torch.zeros(2, 1, 6, dtype=torch.float64)
    u[0, 0, 0], u[1, 0, :2] = 1, torch.tensor([np.cos(1.2), np.sin(1.2)])
    codes = hash_codes(u, make_planes(1, 20000, 3, 6, 0))[0]
    same, opposite = (codes[:, 0] == codes[:, 1]), codes[:, 0] == 7 - codes[:, 1]
    assert same.double().mean().item() == pytest.approx((1 - 1.2 / np.pi) ** 3, abs=0.015)
    assert opposite.double().mean().item() == pytest.approx((1.2 / np.pi) ** 3, abs=0.01)


# ---- edges -----------------------------------------------------------------------------------------------------------


def test_a_query_without_a_shape_and_empty_buckets_are_searched_exactly():
    u, ranks = directions(50, 6)
    v, ranks_v = torch.zeros(2, 3, 6, dtype=torch.float64), torch.tensor([0, 3])
    v[1] = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0][:3]
    tables = build_tables(u, ranks, make_planes(3, 1, 62, 6, 0))
    found, index, searches = hashed_nearest(u, ranks, tables, v, ranks_v)
    similarity, places = nearest_clouds(v, ranks_v, u, ranks)
    assert searches == 2 and torch.equal(index, places) and torch.equal(found, similarity)


def test_no_queries_and_float32():
    u, ranks, v, ranks_v, planes = problem(7)
    u = u.float()
    tables = build_tables(u, ranks, planes)
    found, index, searches = hashed_nearest(u, ranks, tables, v[:0].float(), ranks_v[:0], 2)
    assert found.shape == index.shape == (0, 2) and searches == 0
    found, index, _ = hashed_nearest(u, ranks, tables, v.float(), ranks_v)
    full = cloud_similarity(v.float(), ranks_v, u, ranks)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, full.gather(1, index), rtol=0, atol=1e-6)


def test_directions_beyond_the_rank_do_not_count():
    u, ranks, v, ranks_v, planes = problem(9)
    filled = [torch.where(one == 0, torch.randn(one.shape, dtype=one.dtype), one) for one in (u, v)]
    expected = hashed_nearest(u, ranks, build_tables(u, ranks, planes), v, ranks_v, 3)
    found = hashed_nearest(filled[0], ranks, build_tables(filled[0], ranks, planes), filled[1], ranks_v, 3)
    torch.testing.assert_close(found, expected)


def test_planes_know_the_seed():
    assert torch.equal(make_planes(2, 3, 4, 5, 1), make_planes(2, 3, 4, 5, 1))
    assert not torch.equal(make_planes(2, 3, 4, 5, 1), make_planes(2, 3, 4, 5, 2))


def test_what_is_refused():
    u, ranks, v, ranks_v, planes = problem(8)
    tables = build_tables(u, ranks, planes)
    for bits in (0, 63):
        with pytest.raises(ValueError, match=f"bits must be from 1 to 62, got {bits}"):
            make_planes(3, 2, bits, 6, 0)
    with pytest.raises(ValueError, match=r"directions must be \(Q, 3, 6\) for these planes, got \(40, 2, 6\)"):
        hash_codes(u[:, :2], planes)
    with pytest.raises(ValueError, match="rerank must be >= k = 3, got 2"):
        hashed_nearest(u, ranks, tables, v, ranks_v, 3, rerank=2)
    with pytest.raises(ValueError, match="u must be the 40 lists of the tables, got 39"):
        hashed_nearest(u[1:], ranks[1:], tables, v, ranks_v)
