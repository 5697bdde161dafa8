"""Adapters of vectors: the identity to the bit, the loss and its pull against plain numpy, and what learns."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import torchrank
from torchrank import Adapter, RankingSet
from torchrank.data.relevance import Judged, SameClass
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError
from torchrank.functional import gmml, ndcg, softmax_loss
from torchrank.functional.corpus import search
from torchrank.rankers.adapter.lists import Pool
from torchrank.rankers.adapter.metrics import query_scatters
from torchrank.report.gain import gain

WIDTH = 6


def vectors(count, seed, dtype=torch.float32):
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def turned(count=40, seed=0, documents=60, dtype=torch.float32):
    """Queries whose relevant document is the one nearest to them after a turn."""
    generator = torch.Generator().manual_seed(3)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))[0]
    corpus, queries = vectors(documents, 1, torch.float64), vectors(count, 10 + seed, torch.float64)
    meant = torch.nn.functional.normalize(queries @ turn, dim=1) @ torch.nn.functional.normalize(corpus, dim=1).T
    relevance = Judged(meant.argmax(1), torch.ones(count), np.ones(count, dtype=int), num_rows=documents)
    return RankingSet(corpus.to(dtype), relevance, queries=queries.to(dtype), name=f"part {seed}")


def values(ranker, lists):
    return ndcg(ranker.score(lists[:]), lists[:].labels, lists.offsets, k=10).numpy()


@pytest.mark.parametrize("side", ["query", "document", "both"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("similarity", ["cosine", "inner", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_untrained_adapter_ranks_the_given_vectors(side, rank, similarity, dtype):
    lists = turned(dtype=dtype)
    scores = Adapter(WIDTH, side, rank, similarity).score(lists[:]).view(len(lists), -1)
    bare = Adapter(WIDTH, similarity=similarity)
    bare.maps.clear()
    assert torch.equal(scores, bare.score(lists[:]).view_as(scores))
    found = search(lists.queries, lists.x, 60, similarity=similarity).rows
    assert torch.equal(scores.argsort(dim=1, descending=True, stable=True), found)


@pytest.mark.parametrize("side", ["query", "document", "both"])
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("similarity", ["cosine", "inner", "euclidean"])
def test_the_slopes_are_those_of_the_loss_and_the_pull(side, rank, similarity):
    train = turned(count=5, dtype=torch.float64)
    options = {"loss": "softmax", "temperature": 0.3, "pull": 0.7, "negatives": "all", "batch_queries": 5}
    ranker, lists = Adapter(WIDTH, side, rank, similarity, **options), TrainingLists(train)
    for seed, each in enumerate(ranker.maps.parameters()):
        each.copy_(torch.randn(each.shape, generator=torch.Generator().manual_seed(seed), dtype=each.dtype) / 3)
    ranker.begin(lists)
    ranker.resume(lists)
    ranker.maps.requires_grad_()
    value, slopes = ranker.learner.slopes(ranker, lists, np.arange(5), ranker.maps, None)

    def objective(*parameters):
        given = dict(zip((name for name, _ in ranker.maps.named_parameters()), parameters, strict=True))
        shifts = {}
        for one in ranker.maps:
            low = f"{one}.down" in given
            shifts[one] = given[f"{one}.down"] @ given[f"{one}.up"] if low else given[f"{one}.shift"]
        left, right = train.queries, train.x
        left = left + left @ shifts["query"] if "query" in shifts else left
        right = right + right @ shifts["document"] if "document" in shifts else right
        if similarity == "cosine":
            left, right = (each / each.norm(dim=1, keepdim=True) for each in (left, right))
        table = -(left[:, None] - right).square().sum(2) if similarity == "euclidean" else left @ right.T
        loss = softmax_loss(table.flatten() / 0.3, train[:].labels, train.offsets).mean()
        return loss, loss + 0.35 * sum(each.square().sum() for each in shifts.values())

    parameters = [each.detach().clone().requires_grad_() for each in ranker.maps.parameters()]
    loss, whole = objective(*parameters)
    torch.testing.assert_close(value, loss.detach())
    torch.testing.assert_close(slopes, list(torch.autograd.grad(whole, parameters)))


def test_the_lists_of_a_step_against_loops():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 4, 8)
    rows = np.concatenate([rng.choice(30, count, replace=False) for count in counts])
    grades, offsets = rng.integers(0, 3, len(rows)).astype(np.float32), np.concatenate(([0], np.cumsum(counts)))
    others, corpus = rng.integers(0, 30, (8, 5)), torch.arange(30.0)[:, None]
    judged = [dict(zip(rows[a:b], grades[a:b], strict=True)) for a, b in pairwise(offsets)]
    themselves = np.array([next(row for row in rng.permutation(30) if row not in each) for each in judged])
    themselves[5], others[2, 0] = 30, themselves[2]  # query 5 is no document, and query 2 meets itself
    pool, own, step = Pool(rows, grades, offsets, 30, 3, themselves), np.array([2, 5]), np.array([6, 2, 5, 1])
    union = sorted({row for query in step for row, grade in judged[query].items() if grade})
    assert pool.relevant(step).tolist() == union
    for table in (others[own], np.broadcast_to(union, (2, len(union)))):
        batch = pool.batch(own, table, corpus, torch.arange(8.0)[:, None])
        assert batch.num_pairs == sum(
            int((labels[:, None] > labels).sum()) for labels in batch.labels.split(batch.offsets.diff().tolist())
        ) and batch.max_length == int(batch.offsets.diff().max())
        for place, query in enumerate(own):
            wanted = sorted({*judged[query], *table[place]} - {themselves[query]})
            here = slice(int(batch.offsets[place]), int(batch.offsets[place + 1]))
            assert batch.x[batch.index[here]][:, 0].tolist() == wanted
            assert batch.labels[here].tolist() == [judged[query].get(row, 0.0) for row in wanted]
            assert batch.queries[place].item() == query


@pytest.mark.parametrize("options", [
    {}, {"side": "document"}, {"side": "both", "rank": 4}, {"negatives": "all", "similarity": "euclidean"},
    {"negatives": "random", "num_negatives": 20, "loss": "softmax"}, {"negatives": "batch", "loss": "hinge"},
    {"refresh": 3, "num_negatives": 20}, {"refresh": None, "num_negatives": 60},
])  # fmt: skip
def test_it_learns_a_turn(options):
    options = {"similarity": "cosine", "pull": 1e-3, "lr": 0.03, "temperature": 0.1} | options
    ranker = Adapter(WIDTH, **options).fit(turned(200, 0), turned(60, 1))
    found = gain("ndcg@10", values(ranker, turned(100, 2)), values(ranker.baseline(), turned(100, 2)))
    assert found.mean > 0.25 and found.p < 1e-3 and found.low < found.mean < found.high


def test_to_change_nothing_takes_part_in_the_choice():
    train, val = turned(5, 0), turned(60, 1)
    val.relevance.rows.copy_(
        torch.nn.functional.normalize(val.queries).mm(torch.nn.functional.normalize(val.x).T).argmax(1)
    )
    ranker = Adapter(WIDTH, lr=0.3, pull=0.0).fit(train, val)
    assert all(torch.equal(each.matrix(), torch.eye(WIDTH).double()) for each in ranker.maps.values())
    told = gain("ndcg@10", values(ranker, val), values(ranker.baseline(), val))
    assert told.mean == 0 and told.p == 1 and "each of 60 queries is as before" in str(told)
    assert ranker.findings["index"] == "stays as it is: the vectors are not changed"


@pytest.mark.parametrize("side", ["query", "document", "both"])
@pytest.mark.parametrize("loss", ["domination", "softmax", "lambdarank"])
def test_vectors_of_zeros_do_no_harm(side, loss):
    """Their cosine is 0 whatever the map, so a fit is that without the query; no slope is infinite."""
    train = turned(30)
    train.queries[3], train.x[5] = 0.0, 0.0
    train.relevance.rows[7] = 5  # a relevant document of zeros
    ranker = Adapter(WIDTH, side, loss=loss, temperature=1e-3, pull=0.0, rounds=4, lr=0.02).fit(train)
    assert all(bool(each.matrix().isfinite().all()) for each in ranker.maps.values())
    assert ranker.score(train[3]).abs().max() == 0 and ranker.score(train[:]).view(30, -1)[:, 5].abs().max() == 0


def test_queries_are_not_rounded_beside_documents_in_half_precision():
    lists = turned(20)
    halved = RankingSet(lists.x.half(), lists.relevance, queries=lists.queries)
    widened = RankingSet(lists.x.half().float(), lists.relevance, queries=lists.queries)
    ranker = Adapter(WIDTH, "both", rounds=3, lr=0.05).fit(lists)
    assert torch.equal(ranker.score(halved[:]), ranker.score(widened[:]))
    assert torch.equal(ranker.corpus_ranks(halved.judged()[:]), ranker.corpus_ranks(widened.judged()[:]))


@pytest.mark.parametrize("options", [{}, {"similarity": "inner"}, {"similarity": "euclidean"}, {"solver": "gmml"}])
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_copies_of_a_document_have_one_score(options, count):
    generator = torch.Generator().manual_seed(count)
    queries, corpus = (torch.randn(rows, 65, generator=generator) for rows in (count, 203))
    corpus[::3] = corpus[0].clone()
    known = Judged(torch.zeros(count, dtype=torch.long), torch.ones(count), np.ones(count, dtype=int), num_rows=203)
    ranker = Adapter(65, **options)
    lists = RankingSet(corpus, known, queries=queries).to("cpu", ranker.transform)
    scores = ranker.score(lists[:]).view(count, -1)[:, ::3]
    assert torch.equal(scores, scores[:, :1].expand_as(scores))


def test_a_query_that_is_a_document_does_not_learn_to_avoid_itself():
    """Each query is a document of the corpus; without a change it would be its own nearest negative."""
    corpus = vectors(40, 1)
    partner = np.arange(40).reshape(2, 20)[::-1].flatten()
    corpus[20:] = corpus[:20] + 0.3 * vectors(20, 2)
    relevance = Judged.make(partner, np.ones(40), np.ones(40, dtype=int), 40, torch.arange(40))
    lists = RankingSet(corpus, relevance, queries=corpus)
    pool = Pool.of(TrainingLists(lists))
    batch = pool.batch(np.arange(40), search(corpus, corpus, 5, similarity="cosine").rows.numpy(), corpus, corpus)
    for query, (first, last) in enumerate(pairwise(batch.offsets.tolist())):
        here = batch.x[batch.index[first:last]]
        assert not (here == corpus[query].double()).all(1).any() and batch.labels[first:last].sum() == 1


def test_a_strong_pull_keeps_the_vectors():
    ranker = Adapter(WIDTH, pull=1e6, lr=1e-4, rounds=30).fit(turned(40, 0))
    assert float((ranker.maps["query"].matrix() - torch.eye(WIDTH)).abs().max()) < 2e-3


def test_what_is_saved_ranks_alike(tmp_path):
    ranker, test = Adapter(WIDTH, side="both", lr=0.03, rounds=10).fit(turned(60, 0)), turned(9, 4)
    assert ranker.save(tmp_path / "adapter") == tmp_path / "adapter"
    saved = torchrank.load_adapter(tmp_path / "adapter")
    table = saved.apply(test.queries, "query") @ saved.apply(test.x, "document").T
    torch.testing.assert_close(table.flatten(), ranker.score(test[:]))
    again = torchrank.load(ranker.save(tmp_path / "adapter.ckpt"))
    assert torch.equal(again.score(test[:]), ranker.score(test[:]))


def test_lists_that_it_cannot_take_are_refused():
    x = vectors(6, 0)
    classes = torch.tensor([0, 0, 1, 1, 0, 1])
    points = RankingSet(x, SameClass(classes, classes, ("a", "b"), own=torch.arange(6)), queries=x)
    with pytest.raises(DataError, match="negatives=all"):
        Adapter(WIDTH).fit(points)
    assert Adapter(WIDTH, negatives="all", rounds=3).fit(points).maps["query"].shift.any()
    with pytest.raises(DataError, match="query vectors"):
        Adapter(WIDTH).fit(RankingSet(x, torch.ones(6), torch.tensor([0, 6])))


@pytest.mark.parametrize("wrong", [
    {"side": "left"}, {"rank": 0}, {"similarity": "dot"}, {"loss": "ordinal"}, {"loss_options": {"kk": 3}},
    {"temperature": 0.0}, {"pull": -1.0}, {"negatives": "none"}, {"num_negatives": 0}, {"refresh": 0}, {"lr": 0.0},
    {"batch_queries": 0}, {"seed": -1}, {"rounds": 0}, {"solver": "svm"}, {"index": "annoy"},
])  # fmt: skip
def test_wrong_options_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("_options")):
        Adapter(WIDTH, **wrong)


@pytest.mark.parametrize(("wrong", "told"), [
    ({"solver": "gmml", "similarity": "inner"}, "similarity=cosine or euclidean"),
    ({"solver": "mlr", "rank": 2}, "leave rank out"),
    ({"solver": "mlr", "solver_options": {"lam": 1.0}}, "solver=mlr has no option lam"),
    ({"solver": "gmml", "solver_options": {"ridge": 0.0}}, "ridge must be > 0"),
    ({"solver": "rmlr", "solver_options": {"C": [1.0, -1.0]}}, "C"),
    ({"solver_options": {"C": 1.0}}, "solver_options"),
])  # fmt: skip
def test_wrong_options_of_metrics_are_named(wrong, told):
    with pytest.raises(ValueError, match=told):
        Adapter(WIDTH, **wrong)


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["mlr", "rmlr"])
def test_c_of_0_is_the_cosine_to_the_bit(solver):
    train, test = turned(30, 0), turned(25, 1)
    ranker = Adapter(WIDTH, solver=solver, solver_options={"C": 0.0}).fit(train)
    lists = test.to("cpu", ranker.transform)
    bare = Adapter(WIDTH, similarity="inner").score(lists[:])
    assert torch.equal(ranker.score(lists[:]), bare)
    order = ranker.score(lists[:]).view(25, -1).argsort(dim=1, descending=True, stable=True)
    assert torch.equal(order, search(lists.queries, lists.x, 60).rows)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
@pytest.mark.parametrize("solver", ["gmml", "mlr", "rmlr"])
def test_a_metric_finds_the_features_that_matter(solver, similarity, tmp_path):
    ranker = Adapter(WIDTH, similarity=similarity, solver=solver).fit(stretched(120, 0), stretched(60, 1))
    raw, test = stretched(80, 2), stretched(80, 2).to("cpu", ranker.transform)
    found = gain("ndcg@10", values(ranker, test), values(ranker.baseline(), test))
    assert found.mean > 0.05 and found.p < 1e-3
    saved = torchrank.load_adapter(ranker.save(tmp_path / "adapter"))
    left, right = saved.apply(raw.queries, "query").double(), saved.apply(raw.x, "document").double()
    distances = (left[:, None] - right).square().sum(2)
    scores = ranker.score(test[:]).double().view_as(distances)
    apart = scores - (-distances / (2 if similarity == "cosine" else 1))
    apart -= apart.mean(1, keepdim=True)  # they differ by a constant of each query
    assert float(apart.abs().max()) < 1e-5 * float(distances.max())


def stretched(count, seed, documents=60):
    """Documents whose relevance is in two of the numbers of their vectors, the others are noise."""
    rng = np.random.default_rng((seed, count))
    corpus = np.random.default_rng(9).standard_normal((documents, WIDTH))
    wanted = rng.integers(documents, size=count)
    queries = corpus[wanted] + rng.standard_normal((count, WIDTH)) * [0.1, 0.1, 1.5, 1.5, 1.5, 1.5]
    relevance = Judged(torch.from_numpy(wanted), torch.ones(count), np.ones(count, dtype=int), num_rows=documents)
    vectors = (torch.from_numpy(each).float() for each in (corpus, queries))
    return RankingSet(next(vectors), relevance, queries=next(vectors), name=f"part {seed}")


def test_scatters_against_loops():
    lists = stretched(7, 0, documents=9)
    sums, batch = np.zeros((2, WIDTH, WIDTH)), lists[:]
    for query, labels in zip(lists.queries.double().numpy(), batch.labels.view(7, 9), strict=True):
        for row, label in zip(lists.x.double().numpy(), labels, strict=True):
            gap = (query - row)[:, None]
            sums[int(label == 0)] += gap @ gap.T / int((labels == label).sum())
    found = query_scatters(TrainingLists(lists))
    for scatter, wanted in zip(found, sums, strict=True):
        np.testing.assert_allclose(scatter.numpy(), wanted / np.trace(wanted) * WIDTH, rtol=1e-9, atol=1e-12)
    chosen = Adapter(WIDTH, similarity="euclidean", solver="gmml", solver_options={"ridge": 0.5, "t": 0.3}).fit(lists)
    metric = gmml(*(each + 0.5 * torch.eye(WIDTH).double() for each in found), 0.3)
    root = chosen.maps["query"].matrix()
    torch.testing.assert_close(root @ root, metric / metric.diagonal().mean())


# ---- ranks in a whole corpus -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"similarity": "inner"}, {"similarity": "euclidean"}, {"solver": "gmml"},
                                     {"solver": "gmml", "similarity": "euclidean"}])  # fmt: skip
def test_ranks_are_those_of_the_scores(options):
    train = stretched(60, 0)
    ranker = Adapter(WIDTH, **({"rounds": 4, "lr": 0.05} | options)).fit(train)
    lists = stretched(20, 3).to("cpu", ranker.transform)
    batch = lists.judged()[:]
    assert batch.ranked and batch.order is None
    scores = ranker.score(lists[:]).view(20, -1)
    wanted = [int((row > row[place]).sum()) + 1 for row, place in zip(scores, batch.index, strict=True)]
    assert ranker.corpus_ranks(batch).tolist() == wanted


def test_a_fit_measures_by_ranks_what_it_would_by_scores(monkeypatch):
    train, val = turned(60, 0), turned(30, 1)
    ranker = Adapter(WIDTH, rounds=5, lr=0.05).fit(train, val)
    monkeypatch.setattr(Adapter, "ranks_corpus", False)
    other = Adapter(WIDTH, rounds=5, lr=0.05).fit(train, val)
    assert torch.equal(ranker.maps["query"].shift, other.maps["query"].shift)


@pytest.mark.parametrize("index", ["exact", "faiss"])
def test_an_index_finds_negatives(index):
    if index == "faiss":
        pytest.importorskip("faiss")
    ranker = Adapter(WIDTH, index=index, num_negatives=10, rounds=5, lr=0.05).fit(turned(60, 0))
    assert ranker.maps["query"].shift.any() and ("recall of the index" in ranker.findings) == (index == "faiss")
