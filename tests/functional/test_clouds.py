"""Clouds against plain numpy, list by list and pair by pair; their laws, and the edges: ranks, chunks, tiles, threads.

Principal directions by svd of the centred rows; similarities by their formulas in double loops (Banerjee, Dubey,
Machchhar & Chakrabarti 2009, section 2).
"""

import itertools

import numpy as np
import pytest
import torch

from tests.functional.cloud_rows import clouds, draw, each, same
from torchrank.functional import choose_components, cloud_pca, cloud_similarity, nearest_clouds
from torchrank.functional.chunks import length_chunks

KINDS = ["ordered", "squared", "subspace", "weighted"]


# --- plain forms ---


def directions(count, components=3, features=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(count, features, components, dtype=torch.float64, generator=generator))[0].mT


def plain_pca(rows, components):
    """Directions, variances, total and rank of one cloud of distinct rows."""
    n, features = rows.shape
    u, variances = np.zeros((components, features)), np.zeros(components)
    if n < 2:
        return u, variances, 0.0, 0
    middle = rows - rows.mean(0)
    _, singular, axes = np.linalg.svd(middle, full_matrices=False)
    rank = min(n - 1, features, components)
    for p in range(rank):
        u[p] = axes[p] * np.sign(axes[p][np.abs(axes[p]).argmax()])
        variances[p] = singular[p] ** 2 / n
    return u, variances, (middle**2).sum() / n, rank


def plain_similarity(kind, u, r, lam, v, s, mu):
    """One pair of clouds with `r` and `s` directions."""
    if max(r, s) == 0:
        return 0.0
    if kind == "subspace":
        return sum((u[p] @ v[q]) ** 2 for p in range(r) for q in range(s)) / max(r, s)
    cosines = [abs(u[p] @ v[p]) for p in range(min(r, s))]
    if kind == "weighted":
        weighed = sum(np.sqrt(lam[p] * mu[p]) * cosine for p, cosine in enumerate(cosines))
        return weighed / np.sqrt(sum(lam[:r]) * sum(mu[:s])) if min(r, s) else 0.0
    return sum(cosine ** (2 if kind == "squared" else 1) for cosine in cosines) / max(r, s)


def similarity(first, second, kind, components=4):
    """Of all clouds of two (rows, offsets)."""
    u, lam, _, r = cloud_pca(*first, components)
    v, mu, _, s = cloud_pca(*second, components)
    return cloud_similarity(u, r, v, s, kind=kind, eigenvalues=lam, eigenvalues_v=mu)


# --- principal directions ---


@pytest.mark.parametrize("components", [1, 4, 8, 11])
@pytest.mark.parametrize("seed", [0, 1])
def test_principal_directions(seed, components):
    x, offsets = clouds(seed)
    found = cloud_pca(x, offsets, components)
    for number, rows in enumerate(each(x, offsets)):
        for part, expected in zip(found, plain_pca(rows, components), strict=True):
            np.testing.assert_allclose(part[number].numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [2, 3])
def test_products_of_rows_and_of_columns_agree_with_the_covariance(seed):
    """Clouds around the number of features, one shorter and one longer: eigenvectors of the covariance for all."""
    x, offsets = clouds(seed, lengths=[11, 12, 13, 14, 12, 6, 30], features=12, ratio=1.7)
    u, variances, total, _ = cloud_pca(x, offsets, 5)
    for number, rows in enumerate(each(x, offsets)):
        values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
        np.testing.assert_allclose(variances[number], values[::-1][:5], atol=1e-12)
        np.testing.assert_allclose(total[number], values.sum(), rtol=1e-12)
        cosines = np.abs((u[number].numpy() * vectors.T[::-1][:5]).sum(1))
        assert (cosines > 1 - 1e-8).all()


def test_float32_rows():
    x, offsets = clouds(5)
    x = x.float()
    found = cloud_pca(x, offsets, 4)
    assert [part.dtype for part in found] == [torch.float32] * 3 + [torch.int64]
    for number, rows in enumerate(each(x.double(), offsets)):
        for part, expected in zip(found, plain_pca(rows, 4), strict=True):
            np.testing.assert_allclose(part[number].numpy(), expected, rtol=0, atol=2e-6)


def test_one_document_equal_documents_and_no_document_have_no_shape():
    rows = torch.tensor([[0.1, 1e6 / 3, 0.7]], dtype=torch.float64)
    x, offsets = rows.expand(12, 3), torch.tensor([0, 1, 1, 12])
    for found in cloud_pca(x, offsets, 2):
        assert (found == 0).all()


def test_no_lists():
    u, eigenvalues, total, rank = cloud_pca(torch.zeros(0, 4), torch.tensor([0]), 3)
    assert u.shape == (0, 3, 4) and eigenvalues.shape == (0, 3) and total.shape == rank.shape == (0,)


@pytest.mark.parametrize("length, features, components, rank", [(2, 6, 4, 1), (3, 6, 4, 2), (9, 2, 4, 2), (9, 6, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rank_is_less_than_the_number_of_documents(length, features, components, rank, dtype):
    x, offsets = draw([length], features)
    u, eigenvalues, _, found = cloud_pca(x.to(dtype), offsets, components)
    assert found.item() == rank
    assert (u[0, rank:] == 0).all() and (eigenvalues[0, rank:] == 0).all() and (eigenvalues[0, :rank] > 0).all()
    torch.testing.assert_close(u[0, :rank] @ u[0, :rank].T, torch.eye(rank, dtype=dtype), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "dtype, small, rank", [(torch.float32, 1e-4, 2), (torch.float64, 1e-8, 2), (torch.float64, 1e-5, 3)]
)
def test_variances_below_the_tolerance_do_not_count(dtype, small, rank):
    """Standard deviations 1, 1/2 and `small`: the squares are compared with 1e-6 (float32) or 1e-12."""
    corners = torch.tensor([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], dtype=torch.float64)
    x = (corners * torch.tensor([1, 0.5, small])).to(dtype)
    u, _, _, found = cloud_pca(x, torch.tensor([0, 8]), 3)
    assert found.item() == rank
    same(u[0].double(), torch.eye(3, dtype=torch.float64) * (torch.arange(3) < rank)[:, None], 1e-6)


def test_a_large_constant_feature_hides_nothing():
    x, offsets = draw([9, 20], 5)
    u, eigenvalues, _, rank = cloud_pca(x.float(), offsets, 3)
    wide = torch.cat([x.float(), torch.full((29, 1), 1e6)], 1)
    v, others, _, also = cloud_pca(wide, offsets, 3)
    assert torch.equal(rank, also)
    same(others, eigenvalues, 1e-6)
    same(v[:, :, :5], u, 1e-6)
    same(v[:, :, 5], torch.zeros(2, 3), 1e-6)


def test_the_largest_entry_is_positive():
    u, *_ = cloud_pca(*draw([30] * 40, 7, seed=1), 3)
    assert (u.gather(2, u.abs().argmax(2, keepdim=True)) > 0).all()


@pytest.mark.parametrize("lengths", [[1251, 1, 4, 0, 60, 55, 14, 2, 58, 13], [700] * 30], ids=["unlike", "many"])
def test_a_batch_is_its_lists_one_by_one(lengths):
    """Lists of very different lengths, and more than are solved at once."""
    x, offsets = draw(lengths, 15, seed=2)
    whole = cloud_pca(x, offsets, 3)
    for number, rows in enumerate(x.split(lengths)):
        alone = cloud_pca(rows, torch.tensor([0, len(rows)]), 3)
        for part, one in zip(whole, alone, strict=True):
            same(part[number], one[0], 1e-9)


def test_chunks_hold_every_list_once_and_little_padding():
    lengths = np.random.default_rng(4).integers(0, 300, 500)
    lengths[7] = 1251
    x, offsets = torch.zeros(lengths.sum(), 3), torch.tensor([0, *lengths.cumsum()])
    pieces = length_chunks(offsets, len(x), 2**18 // 3, shortest=2)
    members = np.concatenate([piece.lists.numpy() for piece in pieces])
    assert sorted(members) == np.flatnonzero(lengths >= 2).tolist()
    assert all(piece.longest * len(piece.lists) <= 1.25 * lengths[piece.lists].sum() for piece in pieces)
    assert len(pieces) < 40


@pytest.mark.parametrize("threads, inference", [(1, False), (2, False), (2, True)])
def test_threads_and_inference_mode_change_nothing(threads, inference):
    """Lists of very different lengths are solved apart, so that there is something to share."""
    x, offsets = draw([5, 3, 9, 30, 8], seed=5)
    expected = cloud_pca(x, offsets, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode(inference):
            found = cloud_pca(x, offsets, 3)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_entries_down_to_the_smallest_numbers():
    """Standard deviations of 280 features from 1 to 1e-49: in float32 LAPACK finds no eigenvectors of such clouds."""
    x, offsets = draw([12, 300], 280, seed=6, ratio=1.5)
    u, eigenvalues, _, rank = cloud_pca(x.float(), offsets, 4)
    exact, values, _, _ = cloud_pca(x, offsets, 4)
    assert rank.tolist() == [4, 4]
    same(u.double(), exact, 1e-5)
    same(eigenvalues.double(), values, 1e-5)


def test_where_the_eigenvalues_are_not_found(monkeypatch):
    def fail(matrices):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    x, offsets = draw([5, 3, 9, 30, 8], seed=7)
    expected = cloud_pca(x, offsets, 3)
    monkeypatch.setattr(torch.linalg, "eigh", fail)
    for found, one in zip(cloud_pca(x, offsets, 3), expected, strict=True):
        same(found, one, 1e-9)


def test_components_that_explain_enough():
    """By hand: the mean explained shares of the clouds with a shape are (.6, .85, 1) + (.9, 1, 1) over 2."""
    eigenvalues = torch.tensor([[6.0, 2.5, 1.5], [9.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    total, rank = torch.tensor([10.0, 10.0, 0.0]), torch.tensor([3, 2, 0])
    assert choose_components(eigenvalues, total, rank, 0.75) == 1
    assert choose_components(eigenvalues, total, rank) == 2
    assert choose_components(eigenvalues, total, rank, 0.95) == 3
    assert choose_components(eigenvalues, total, rank, 0.95, cap=2) == 2
    assert choose_components(eigenvalues[:, :2], total, torch.tensor([2, 2, 0]), 0.95) == 2  # none is enough
    assert choose_components(eigenvalues[2:], total[2:], rank[2:]) == 1  # no cloud has a shape


# --- similarities ---


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_pair_by_pair(kind):
    first, second = clouds(6), clouds(7, lengths=[4, 1, 2, 30, 0, 9])
    u, lam, _, r = cloud_pca(*first, 4)
    v, mu, _, s = cloud_pca(*second, 4)
    found = cloud_similarity(u, r, v, s, kind=kind, eigenvalues=lam, eigenvalues_v=mu)
    left, right = (
        zip(u.numpy(), r.tolist(), lam.numpy(), strict=True),
        list(zip(v.numpy(), s.tolist(), mu.numpy(), strict=True)),
    )
    expected = [[plain_similarity(kind, *one, *other) for other in right] for one in left]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_the_nearest_are_the_first_of_the_full_order(kind, k):
    """With ties: every third cloud of v comes twice."""
    u, lam, _, r = cloud_pca(*clouds(8), 4)
    v, mu, _, s = cloud_pca(*clouds(9, lengths=[4, 1, 2, 30, 0, 9, 2, 6]), 4)
    again = torch.tensor([0, 1, 2, 3, 0, 4, 5, 6, 3, 7, 6])
    v, mu, s = v[again], mu[again], s[again]
    weights = {"eigenvalues": lam, "eigenvalues_v": mu}
    full = cloud_similarity(u, r, v, s, kind=kind, **weights).numpy()
    found, index = nearest_clouds(u, r, v, s, k, kind=kind, **weights)
    for row, values, places in zip(full, found.numpy(), index.tolist(), strict=True):
        order = sorted((-value, place) for place, value in enumerate(row) if s[place] > 0)[:k]
        assert places == [place for _, place in order]
        assert values.tolist() == [-value for value, _ in order]


def shuffled(x, offsets):
    draw = np.random.default_rng(1)
    order = np.concatenate([a + draw.permutation(b - a) for a, b in itertools.pairwise(offsets.tolist())])
    return x[order], offsets


def moved(x, offsets):
    shift = torch.tensor(np.random.default_rng(2).normal(size=(len(offsets) - 1, x.shape[1])) * 10)
    return x + shift.repeat_interleave(offsets.diff(), 0), offsets


def scaled(x, offsets):
    factors = torch.tensor([-3.0, 1e-3, 0.5, 700.0, -1.0, -1e4, 2.0, 1.0, 5.0, -0.1, 30.0], dtype=torch.float64)
    return x * factors.repeat_interleave(offsets.diff())[:, None], offsets


def repeated(x, offsets):
    return x.repeat_interleave(3, 0), 3 * offsets


CHANGES = {change.__name__: change for change in (shuffled, moved, scaled, repeated)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_that_leave_the_shape(kind, change):
    first, second = clouds(15), clouds(16, lengths=[5, 12, 1, 3])
    expected = similarity(first, second, kind)
    torch.testing.assert_close(similarity(change(*first), second, kind), expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(similarity(second, change(*first), kind), expected.T, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_rotation_changes_nothing_that_of_one_side_does(kind):
    first, second = clouds(17), clouds(18, lengths=[5, 12, 1, 3])
    turn = torch.tensor(np.linalg.qr(np.random.default_rng(3).normal(size=(8, 8)))[0])
    expected = similarity(first, second, kind)
    turned = [(x @ turn, offsets) for x, offsets in (first, second)]
    torch.testing.assert_close(similarity(*turned, kind), expected, rtol=0, atol=1e-8)
    assert (similarity(turned[0], second, kind) - expected).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_lie_between_0_and_1_are_symmetric_and_1_for_itself(kind):
    x, offsets = clouds(19)
    found = similarity((x, offsets), (x, offsets), kind)
    assert (found >= 0).all() and (found <= 1).all()
    torch.testing.assert_close(found, found.T, rtol=0, atol=1e-12)
    shape = (offsets.diff() > 1).double()
    torch.testing.assert_close(found.diagonal(), shape, rtol=0, atol=1e-12)
    assert (found[shape == 0] == 0).all()


def test_the_span_knows_no_order():
    """`subspace` is blind to the order of directions and to a rotation inside their span, the others are not."""
    u = torch.eye(6, dtype=torch.float64)[None, :3]
    turn = torch.tensor(np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0])
    rank = torch.tensor([3])
    for other in (u.flip(1), turn @ u):
        assert cloud_similarity(u, rank, other, rank, kind="subspace").item() == pytest.approx(1, abs=1e-12)
        assert cloud_similarity(u, rank, other, rank).item() < 0.9


@pytest.mark.parametrize("kind", ["squared", "subspace"])
def test_squares_of_full_rank_clouds_are_positive_definite(kind):
    u, _, _, rank = cloud_pca(*clouds(20, lengths=[6] * 30), 3)
    assert np.linalg.eigvalsh(cloud_similarity(u, rank, u, rank, kind=kind).numpy()).min() > -1e-10


@pytest.mark.parametrize("kind", ["ordered", "subspace"])
def test_many_clouds_are_compared_as_a_few_are(kind):
    """More clouds than are compared at once."""
    u, v = directions(600), directions(531, seed=1)
    ranks, ranks_v = torch.arange(600) % 4, torch.arange(531) % 4
    options = {"kind": kind}
    full, own = cloud_similarity(u, ranks, v, ranks_v, **options), cloud_similarity(u, ranks, u, ranks, **options)
    parts = [cloud_similarity(u[q : q + 100], ranks[q : q + 100], v, ranks_v, **options) for q in range(0, 600, 100)]
    same(torch.cat(parts), full)
    assert torch.equal(own, own.T)
    same(cloud_similarity(u, ranks, u.clone(), ranks, **options), own)
    similarity, index = nearest_clouds(u, ranks, v, ranks_v, 5, **options)
    best, place = full.masked_fill(ranks_v == 0, -1).sort(dim=1, descending=True, stable=True)
    same(similarity, best[:, :5])
    assert torch.equal(index[ranks > 0], place[ranks > 0, :5])


def test_directions_beyond_the_rank_do_not_count():
    u, v, ranks = directions(5), directions(4, seed=1), torch.tensor([0, 1, 2, 3, 7])
    cut = u * (torch.arange(3) < ranks[:, None])[:, :, None]
    full = torch.full((4,), 3)
    assert torch.equal(cloud_similarity(u, ranks, v, full), cloud_similarity(cut, ranks.clamp(max=3), v, full))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_equal_clouds_the_first_is_the_nearest(k):
    axes = torch.eye(4, dtype=torch.float64)[:, None]
    v, ranks = axes[[3, 0, 1, 0, 1, 0, 1]], torch.tensor([1, 0, 1, 1, 1, 1, 1])
    similarity, index = nearest_clouds(axes[:3], torch.tensor([1, 1, 1]), v, ranks, k)
    expected = [[3, 5, 0], [2, 4, 6], [0, 2, 3]]  # all are orthogonal to the third: the first ones with a shape
    assert index.tolist() == [row[:k] for row in expected]
    assert similarity.tolist() == [row[:k] for row in ([1, 1, 0], [1, 1, 1], [0, 0, 0])]


def test_places_without_a_neighbour():
    u = directions(3)
    similarity, index = nearest_clouds(u, torch.tensor([3, 3, 3]), u, torch.tensor([0, 3, 0]), 2)
    assert index.tolist() == [[1, -1]] * 3 and (similarity[:, 1] == 0).all()


def test_no_query():
    u, ranks = directions(3), torch.tensor([3, 3, 3])
    similarity, index = nearest_clouds(u[:0], ranks[:0], u, ranks, 2)
    assert similarity.shape == index.shape == (0, 2)
    assert cloud_similarity(u, ranks, u[:0], ranks[:0]).shape == (3, 0)


# --- refusals ---


def test_the_memory_guard_speaks_before_it_allocates():
    u, ranks = torch.zeros(1, 5, 136).expand(30_000, 5, 136), torch.ones(1).long().expand(30_000)
    tiny = torch.zeros(30_000, 1, 1)
    with pytest.raises(ValueError, match=r"30000 x 30000 clouds need 3.4 GiB.*nearest_clouds"):
        cloud_similarity(tiny, ranks, tiny, ranks)
    with pytest.raises(ValueError, match="nearest_clouds"):
        cloud_similarity(u[:10], ranks[:10], u[:10], ranks[:10], max_bytes=100)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x, o: cloud_pca(x, o, 0), "components must be >= 1, got 0"),
        (lambda x, o: cloud_pca(x[:, 0], o, 1), r"x must have the shape \(N, D\)"),
        (lambda x, o: cloud_pca(x[:-1], o, 1), "offsets must rise from 0 to N = 8, got 0 to 9"),
        (lambda x, o: cloud_pca(x.clone().fill_(torch.nan), o, 1), "not finite"),
        (lambda x, o: cloud_pca(1e200 * x, o, 1), "not finite"),
    ],
)
def test_rows_that_are_refused(call, message):
    x, offsets = draw([5, 4])
    with pytest.raises(ValueError, match=message):
        call(x, offsets)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "cosine"}, "unknown kind='cosine': choose one of ordered, squared, subspace, weighted"),
        ({"kind": "weighted"}, "give eigenvalues"),
        ({"v": directions(3, components=2)}, "the same P and D"),
    ],
)
def test_directions_that_are_refused(options, message):
    u, ranks = directions(3), torch.tensor([3, 3, 3])
    v = options.pop("v", u)
    for function in (cloud_similarity, nearest_clouds):
        with pytest.raises(ValueError, match=message):
            function(u, ranks, v, ranks, **options)


def test_more_neighbours_than_clouds():
    u, ranks = directions(3), torch.tensor([3, 3, 3])
    with pytest.raises(ValueError, match="k must be from 1 to 3, the number of clouds of v, got 4"):
        nearest_clouds(u, ranks, u, ranks, 4)
