"""Search over a corpus against numpy: all scores, sorted by score and then by place."""

import numpy as np
import pytest
import torch

from torchrank.functional import CONVENTIONS, MEASURES, evaluate, evaluate_ranks
from torchrank.functional.corpus import SIMILARITIES, document_ranks, search


def plain_scores(queries, documents, similarity, factor=None):
    q, d = (np.asarray(each, dtype=np.float64) for each in (queries, documents))
    if factor is not None:
        q, d = q @ np.asarray(factor, dtype=np.float64), d @ np.asarray(factor, dtype=np.float64)
    if similarity == "euclidean":
        return -((q[:, None] - d[None]) ** 2).sum(2)
    inner = q @ d.T
    if similarity == "inner":
        return inner
    lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(d, axis=1)
    return np.divide(inner, lengths, out=np.zeros_like(inner), where=lengths > 0)


def integers(count, width, high, seed):
    """Whole numbers: all scores but cosines are exact, and many are equal."""
    return torch.randint(-high, high + 1, (count, width), generator=torch.Generator().manual_seed(seed)).float()


MANY = 17_000  # more documents than one block of scores has


@pytest.mark.parametrize("similarity", ["inner", "euclidean"])
@pytest.mark.parametrize("high", [1, 20])
@pytest.mark.parametrize("k", [1, 10, 130, 500])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("size", [211, MANY])
def test_the_best_documents_with_ties(similarity, high, k, ordered, size):
    queries, documents = integers(17, 3, high, 0), integers(size, 3, high, 1)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(2)) if ordered else None
    found = search(queries, documents, k, similarity=similarity, order=order)
    places = np.arange(size) if order is None else np.argsort(order.numpy())
    scores = plain_scores(queries, documents, similarity)
    for q in range(17):
        wanted = np.lexsort((places, -scores[q]))[:k]
        assert found.rows[q].tolist() == wanted.tolist()
        np.testing.assert_array_equal(found.scores[q].numpy(), scores[q, wanted])


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("size", [120, MANY])
def test_ranks_of_documents(similarity, ordered, size):
    queries, documents = integers(9, 3, 2, 3), integers(size, 3, 2, 4)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(5)) if ordered else None
    judged = torch.cat([torch.arange(119), torch.tensor([size - 1])])
    ranks = document_ranks(
        judged.repeat(9), queries, documents, torch.arange(10) * 120, similarity=similarity, order=order
    ).view(9, 120)
    found = search(queries, documents, size, similarity=similarity, order=order)
    assert torch.equal(found.rows.gather(1, ranks - 1), judged.expand(9, 120))
    some = torch.tensor([5, 7, size - 1, 0, 5])
    part = document_ranks(some, queries[:3], documents, torch.tensor([0, 2, 2, 5]), similarity=similarity, order=order)
    assert part.tolist() == [ranks[0, 5], ranks[0, 7], ranks[2, 119], ranks[2, 0], ranks[2, 5]]


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("mapped", [False, True])
def test_scores_of_every_kind_of_vectors(similarity, dtype, mapped):
    generator = torch.Generator().manual_seed(6)
    queries, documents = (torch.randn(size, 6, generator=generator).to(dtype) for size in (7, 100))
    factor = torch.randn(6, 4, generator=generator).to(dtype) if mapped else None
    found = search(queries, documents, 20, similarity=similarity, factor=factor)
    wanted = -np.sort(
        -plain_scores(queries.double(), documents.double(), similarity, None if factor is None else factor.double())
    )
    close = 1e-12 if dtype == torch.float64 else 2e-5
    np.testing.assert_allclose(found.scores.double(), wanted[:, :20], rtol=close, atol=close * 10)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_many_queries_for_many_documents_are_those_of_one_query_at_a_time(similarity):
    generator = torch.Generator().manual_seed(1)
    queries, documents = (torch.randn(rows, 3, generator=generator) for rows in (1100, MANY))
    found, judged = search(queries, documents, 3, similarity=similarity), torch.arange(0, MANY, 8000)
    options = {"similarity": similarity}
    offsets = len(judged) * torch.arange(1101)
    ranks = document_ranks(judged.repeat(1100), queries, documents, offsets, **options).view(1100, -1)
    for q in (0, 1030, 1099):
        alone = search(queries[q : q + 1], documents, 3, **options)
        assert torch.equal(found.rows[q], alone.rows[0])
        torch.testing.assert_close(found.scores[q], alone.scores[0])
        scores = torch.from_numpy(plain_scores(queries[q : q + 1], documents, similarity))[0]
        np.testing.assert_allclose(ranks[q], 1 + (scores > scores[judged, None]).sum(1), atol=1)


def test_zeros_under_cosine_and_empty_sides():
    found = search(
        torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]]), 5, similarity="cosine"
    )
    assert found.scores.tolist() == [[0.0, 0.0], [1.0, 0.0]] and found.rows.tolist() == [[0, 1], [1, 0]]
    assert search(torch.zeros(0, 2), torch.zeros(3, 2), 2).rows.shape == (0, 2)
    assert search(torch.zeros(2, 2), torch.zeros(0, 2), 2).rows.shape == (2, 0)


@pytest.mark.parametrize(
    "queries, documents, options, told",
    [
        (torch.zeros(1, 2), torch.zeros(1, 3), {}, "queries have 2 numbers each, and documents 3"),
        (torch.zeros(2), torch.zeros(1, 3), {}, "queries must be vectors"),
        (torch.zeros(1, 3), torch.tensor([[0.0, 0, 0], [0, torch.nan, 0]]), {}, "document 1 is not finite"),
        (torch.full((1, 3), torch.inf), torch.zeros(1, 3), {}, "the vector of query 0 is not finite"),
        (torch.zeros(1, 3), torch.zeros(2, 3), {"order": torch.zeros(3)}, "each of the 2 rows once"),
        (torch.zeros(1, 3), torch.zeros(2, 3), {"factor": torch.zeros(2, 2)}, "factor must have 3 rows"),
        (torch.zeros(1, 3), torch.zeros(2, 3), {"k": 0}, "k must be >= 1"),
        (torch.zeros(1, 3), torch.zeros(2, 3), {"similarity": "dot"}, "inner"),
    ],
)  # fmt: skip
def test_what_is_refused(queries, documents, options, told):
    with pytest.raises(ValueError, match=told):
        search(queries, documents, **options)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_permuted_corpus_gives_the_same_documents(similarity):
    generator = torch.Generator().manual_seed(7)
    queries, documents = (torch.randn(size, 6, generator=generator).double() for size in (11, 180))
    moved = torch.randperm(180, generator=generator)
    found, again = (
        search(queries, documents, 30, similarity=similarity),
        search(queries, documents[moved], 30, similarity=similarity),
    )
    assert torch.equal(moved[again.rows], found.rows)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 17])
@pytest.mark.parametrize("size", [50, 1001, MANY])
def test_copies_of_a_document_rank_one_after_the_other(similarity, dtype, count, size):
    """Products of few rows, and the last columns of a product, may take other kernels, which round otherwise."""
    generator = torch.Generator().manual_seed(size + count)
    queries, documents = (torch.randn(rows, 33, generator=generator).to(dtype) for rows in (count, size))
    copies = torch.cat([torch.randperm(size, generator=generator)[:20], torch.tensor([0, size - 1])]).unique()
    documents[copies] = documents[0].clone()
    found = search(queries, documents, size, similarity=similarity)
    for rows, scores in zip(found.rows, found.scores, strict=True):
        here = torch.isin(rows, copies).nonzero().flatten()
        assert torch.equal(here, torch.arange(here[0], here[0] + len(copies))) and torch.equal(rows[here], copies)
        assert len(scores[here].unique()) == 1


def test_documents_are_found_for_vectors_that_have_gradients():
    queries, documents = integers(3, 4, 9, 8), integers(120, 4, 9, 9)
    found = search(queries.clone().requires_grad_(), documents.clone().requires_grad_(), 7)
    assert torch.equal(found.rows, search(queries, documents, 7).rows) and not found.scores.requires_grad


@pytest.mark.parametrize("seed", range(5))
def test_measures_from_ranks_are_those_of_all_scores(seed):
    """Equal scores rank by id, in the ranks by `order`, and in the whole ranking by `tiebreak`."""
    rng = np.random.default_rng(seed)
    size, count = int(rng.integers(1, 160)), 8
    queries, documents = integers(count, 2, 2, seed), integers(size, 2, 2, seed + 50)
    place = torch.from_numpy(rng.permutation(size))
    labels = torch.from_numpy(rng.integers(0, 4, (count, size)) * (rng.random((count, size)) < 0.2))
    judged = (labels > 0).nonzero()[:, 1]
    bounds = torch.tensor([0, *(labels > 0).sum(1).cumsum(0).tolist()])
    ranks = document_ranks(judged, queries, documents, bounds, order=place.argsort())
    families = [family for family in CONVENTIONS["default"].measures if MEASURES[family].from_ranks]
    names = [f"{family}@{k}" for family in families for k in (1, 10, 100) if MEASURES[family].cut != "none"]
    names += [family for family in families if MEASURES[family].cut != "required"]
    found = evaluate_ranks(ranks, labels[labels > 0], bounds, num_documents=size, measures=names, max_label=4)
    scores = torch.from_numpy(plain_scores(queries, documents, "inner"))
    wanted = evaluate(
        scores.flatten(), labels.flatten(), torch.arange(count + 1) * size, measures=names, max_label=4,
        tiebreak=place.repeat(count),
    )  # fmt: skip
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-12, err_msg=name)
