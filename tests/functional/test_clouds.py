"""Clouds at the edges: lists of any length, ranks, chunks, tiles, threads, and what is refused."""

import numpy as np
import pytest
import torch

from torchrank.functional import (
    choose_components,
    cloud_gaussians,
    cloud_moments,
    cloud_pca,
    cloud_similarity,
    gaussian_divergence,
    nearest_clouds,
)
from torchrank.functional import chunks as chunks_module
from torchrank.functional import clouds as clouds_module
from torchrank.functional import gaussians as gaussians_module
from torchrank.functional.chunks import cloud_chunks


def draw(lengths, features=6, seed=0, ratio=2.0):
    """Rows with falling standard deviations, and offsets."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), features, dtype=torch.float64, generator=generator)
    return x * ratio ** -torch.arange(features), torch.tensor([0, *np.cumsum(lengths)])


def directions(count, components=3, features=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(count, features, components, dtype=torch.float64, generator=generator))[0].mT


def same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


# --- principal directions ---


@pytest.mark.parametrize("route", ["exact", "subspace"])
def test_one_document_equal_documents_and_no_document_have_no_shape(route):
    rows = torch.tensor([[0.1, 1e6 / 3, 0.7]], dtype=torch.float64)
    x, offsets = rows.expand(12, 3), torch.tensor([0, 1, 1, 12])
    for found in cloud_pca(x, offsets, 2, route=route):
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


@pytest.mark.parametrize("route", ["exact", "subspace"])
def test_a_batch_is_its_lists_one_by_one(route):
    lengths = [1251, 1, 4, 0, 60, 55, 14, 2, 58, 13]
    x, offsets = draw(lengths, 15, seed=2)
    whole = cloud_pca(x, offsets, 3, route=route)
    for number, rows in enumerate(x.split(lengths)):
        alone = cloud_pca(rows, torch.tensor([0, len(rows)]), 3, route=route)
        for part, one in zip(whole, alone, strict=True):
            same(part[number], one[0], 1e-9)


@pytest.mark.parametrize("numbers", [1, 200, 2**21])
def test_small_chunks_change_nothing(numbers, monkeypatch):
    x, offsets = draw([5, 1, 9, 30, 8, 0, 7], seed=3)
    expected = [*cloud_pca(x, offsets, 3), *cloud_moments(x, offsets), *cloud_gaussians(x, offsets)]
    monkeypatch.setattr(chunks_module, "CHUNK_NUMBERS", numbers)
    found = [*cloud_pca(x, offsets, 3), *cloud_moments(x, offsets), *cloud_gaussians(x, offsets)]
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_chunks_hold_every_list_once_and_little_padding():
    lengths = np.random.default_rng(4).integers(0, 300, 500)
    lengths[7] = 1251
    x, offsets = torch.zeros(lengths.sum(), 3), torch.tensor([0, *lengths.cumsum()])
    pieces = cloud_chunks(x, offsets, shortest=2)
    members = np.concatenate([piece.lists.numpy() for piece in pieces])
    assert sorted(members) == np.flatnonzero(lengths >= 2).tolist()
    assert all(piece.longest * len(piece.lists) <= 1.25 * lengths[piece.lists].sum() for piece in pieces)
    assert len(pieces) < 40


def threads_and_modes():
    return [(1, False), (2, False), (2, True)]


@pytest.mark.parametrize("threads, inference", threads_and_modes())
def test_threads_and_inference_mode_change_nothing(threads, inference, monkeypatch):
    """A chunk per list, so that there is something to share."""
    monkeypatch.setattr(chunks_module, "CHUNK_NUMBERS", 1)
    x, offsets = draw([5, 3, 9, 30, 8], seed=5)
    expected = cloud_pca(x, offsets, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode(inference):
            found = cloud_pca(x, offsets, 3)
            moments = cloud_moments(x, offsets)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert moments[0].shape == (5, 6)


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
    monkeypatch.setattr(clouds_module, "eigh", fail)
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


@pytest.mark.parametrize("kind", ["ordered", "subspace"])
def test_tiles_change_nothing(kind, monkeypatch):
    u, v = directions(23), directions(31, seed=1)
    ranks, ranks_v = torch.arange(23) % 4, torch.arange(31) % 4
    full, own = cloud_similarity(u, ranks, v, ranks_v, kind=kind), cloud_similarity(u, ranks, u, ranks, kind=kind)
    near = nearest_clouds(u, ranks, v, ranks_v, 5, kind=kind)
    monkeypatch.setattr(clouds_module, "TILE", 8)
    same(cloud_similarity(u, ranks, v, ranks_v, kind=kind), full)
    tiled = cloud_similarity(u, ranks, u, ranks, kind=kind)
    same(tiled, own)
    assert torch.equal(tiled, tiled.T)
    same(cloud_similarity(u, ranks, u.clone(), ranks, kind=kind), own)
    again = nearest_clouds(u, ranks, v, ranks_v, 5, kind=kind)
    same(again[0], near[0])
    assert torch.equal(again[1][ranks > 0], near[1][ranks > 0])


def test_directions_beyond_the_rank_do_not_count():
    u, v, ranks = directions(5), directions(4, seed=1), torch.tensor([0, 1, 2, 3, 7])
    cut = u * (torch.arange(3) < ranks[:, None])[:, :, None]
    full = torch.full((4,), 3)
    assert torch.equal(cloud_similarity(u, ranks, v, full), cloud_similarity(cut, ranks.clamp(max=3), v, full))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("tile", [2, 512])
def test_of_equal_clouds_the_first_is_the_nearest(k, tile, monkeypatch):
    monkeypatch.setattr(clouds_module, "TILE", tile)
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


# --- what is refused ---


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
        (lambda x, o: cloud_pca(x, o, 2, route="svd"), "route is 'svd'"),
        (lambda x, o: cloud_pca(x, o, 0), "components is 0"),
        (lambda x, o: cloud_pca(x[:, 0], o, 1), "made of rows"),
        (lambda x, o: cloud_pca(x[:-1], o, 1), "9 entries, but x has 8 rows"),
        (lambda x, o: cloud_pca(x, o, 1, max_length=4), "max_length is 4"),
        (lambda x, o: cloud_pca(x.clone().fill_(torch.nan), o, 1), "not finite"),
        (lambda x, o: cloud_pca(1e200 * x, o, 1), "not finite"),
        (lambda x, o: cloud_gaussians(x, o, shrink=1.5), "shrink is 1.5"),
        (lambda x, o: cloud_gaussians(x, o, ridge=-1.0), "ridge -1.0"),
    ],
)
def test_rows_that_are_refused(call, message):
    x, offsets = draw([5, 4])
    with pytest.raises(ValueError, match=message):
        call(x, offsets)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kind": "cosine"}, "kind is 'cosine'"),
        ({"kind": "weighted"}, "give eigenvalues"),
        ({"v": directions(3, components=2)}, "equal P, D"),
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
    with pytest.raises(ValueError, match="k is 4"):
        nearest_clouds(u, ranks, u, ranks, 4)


def test_gaussians_that_are_refused(monkeypatch):
    means, covariances = cloud_gaussians(*draw([5, 4]))
    broken = covariances.clone()
    broken[1, 2, 2] = -1
    with pytest.raises(ValueError, match=r"covariances_v\[1\] is not positive definite"):
        gaussian_divergence(means, covariances, means, broken)
    with pytest.raises(ValueError, match="kind is 'kl'"):
        gaussian_divergence(means, covariances, means, covariances, kind="kl")
    with pytest.raises(ValueError, match="6 and 3 features"):
        gaussian_divergence(means, covariances, means[:, :3], covariances[:, :3, :3])
    with pytest.raises(ValueError, match=r"give \(Q, D\)"):
        gaussian_divergence(means, covariances[:1], means, covariances)
    monkeypatch.setattr(gaussians_module, "PAIR_CLOUDS", 1)
    with pytest.raises(ValueError, match="2 x 2 pairs"):
        gaussian_divergence(means, covariances, means, covariances, kind="bhattacharyya")


def test_pairs_in_chunks(monkeypatch):
    gaussians = cloud_gaussians(*draw([5, 4, 9, 1]))
    expected = gaussian_divergence(*gaussians, *gaussians, kind="bhattacharyya")
    monkeypatch.setattr(gaussians_module, "PAIR_NUMBERS", 3 * 36)
    same(gaussian_divergence(*gaussians, *gaussians, kind="bhattacharyya"), expected)
