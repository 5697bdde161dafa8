"""`evaluate_ranks` against `evaluate` on the lists of all documents, and against loops over them."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from tests.laws.elsewhere import Elsewhere
from tests.laws.test_functions import Synchronisations
from tests.reference import measures as reference
from torchrank.errors import DataWarning
from torchrank.functional import CONVENTIONS, MEASURES, document_ranks, evaluate, evaluate_ranks, known_from_ranks

RANKED = [name for name, row in MEASURES.items() if row.from_ranks]
POSSIBLE = ("default", "letor", "lightgbm")
CUTS = (1, 3, 10, 100)
FIRST = torch.tensor([4, 1, 90]), torch.tensor([1, 2, 1]), torch.tensor([0, 2, 3])


def measures_of(convention):
    """All that are known from ranks, at all cut-offs and without one."""
    families = [family for family in CONVENTIONS[convention].measures if family in RANKED]
    cut = [f"{family}@{k}" for family in families for k in CUTS if MEASURES[family].cut != "none"]
    return cut + [family for family in families if MEASURES[family].cut != "required"]


class Corpus:
    """Queries that rank `size` documents, of which some are judged; graded labels, or real ones up to 4."""

    def __init__(self, size, seed=0, queries=9, real=False):
        rng = np.random.default_rng([size, seed])
        labels = rng.integers(0, 5, (queries, size)) * (rng.random((queries, size)) < rng.random((queries, 1)))
        labels = labels * 0.8 if real else labels
        labels[0] = labels[1] = 0  # no judged document, and none that is relevant
        labels[2] = 4 if size < 5 else labels[2]  # all of them
        judged = (labels > 0) | (rng.random((queries, size)) < 0.3)
        judged[0] = False
        self.ranking = np.argsort(rng.random((queries, size)), axis=1) + 1  # the rank of each document
        self.size, self.labels = size, labels
        self.all = self.flat(-self.ranking / 7.0), self.flat(labels), torch.arange(0, queries * size + 1, size)
        self.lists = [rng.permutation(row.nonzero()[0]) for row in judged]
        self.offsets = torch.tensor([0, *np.cumsum([len(each) for each in self.lists])])
        self.ranks, self.judged = self.picked(self.ranking), self.picked(labels)

    def flat(self, values):
        return torch.tensor(values.reshape(-1))

    def picked(self, values):
        return torch.tensor(np.concatenate([row[each] for row, each in zip(values, self.lists, strict=True)]))

    def evaluate(self, **options):
        return evaluate_ranks(self.ranks, self.judged, self.offsets, num_documents=self.size, **options)


def same(found, expected, atol=1e-12):
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("convention", POSSIBLE)
@pytest.mark.parametrize("real", [False, True])
def test_the_values_of_whole_lists(convention, real):
    options = {"measures": measures_of(convention), "convention": convention, "max_label": 4}
    for size in range(1, 61):
        corpus, options["threshold"] = Corpus(size, real=real), (None, 2, 3.2)[size % 3]
        same(corpus.evaluate(**options), evaluate(*corpus.all, **options))


def plain(scores, labels, k):
    """Measures of one list by loops; `scores` and `labels` are those of all documents."""
    hits = reference.hits(scores, labels, k=k)
    return {
        "ndcg": reference.ndcg(scores, labels, k=k),
        "map": reference.average_precision(scores, labels, k=k),
        "mrr": reference.reciprocal_rank(scores, labels, k=k),
        "err": reference.err(scores, labels, max_label=4, k=k),
        "rbp": reference.rbp(scores, labels, k=k),
        "hits": hits,
        "hit": hits if math.isnan(hits) else float(hits > 0),
    } | (
        {"p": reference.precision(scores, labels, k=k), "recall": reference.recall(scores, labels, k=k)}
        if k
        else {"r_precision": reference.r_precision(scores, labels), "arp": reference.arp(scores, labels)}
    )


@pytest.mark.parametrize("size", [1, 2, 17, 40])
@pytest.mark.parametrize("k", [None, 1, 3, 10, 100])
def test_the_values_of_loops(size, k):
    corpus = Corpus(size, seed=1, queries=6)
    rows = [
        plain((-ranking).tolist(), labels.tolist(), k)
        for ranking, labels in zip(corpus.ranking, corpus.labels, strict=True)
    ]
    names = {name: f"{name}@{k}" if k else name for name in rows[0]}
    found = corpus.evaluate(measures=list(names.values()), max_label=4)
    for name, own in names.items():
        np.testing.assert_allclose(found[own], [row[name] for row in rows], rtol=0, atol=1e-12, err_msg=own)


def test_by_hand():
    values = evaluate_ranks(*FIRST, num_documents=1000, measures=["map", "mrr", "p@5", "ndcg@3", "arp", "r_precision"])
    expected = {
        "map": [(1 + 2 / 4) / 2, 1 / 90],
        "mrr": [1, 1 / 90],
        "p@5": [0.4, 0],
        "ndcg@3": [3 / (3 + 1 / math.log2(3)), 0],
        "arp": [(2 * 1 + 4) / 3, 90],
        "r_precision": [0.5, 0],
    }
    assert {name: value.tolist() for name, value in values.items()} == {
        name: pytest.approx(value, abs=1e-12) for name, value in expected.items()
    }


def test_the_order_of_entries_and_judged_documents_of_label_0_change_nothing():
    corpus = Corpus(50, seed=2)
    names = measures_of("default")
    expected = corpus.evaluate(measures=names, max_label=4)
    ids = torch.repeat_interleave(corpus.offsets.diff())
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    order = order[ids[order].argsort(stable=True)]
    moved = evaluate_ranks(
        corpus.ranks[order], corpus.judged[order], corpus.offsets, num_documents=50, measures=names, max_label=4
    )
    same(moved, expected, atol=0)
    kept = corpus.judged > 0
    assert 0 < kept.sum() < len(kept)
    bounds = torch.nn.functional.pad(torch.bincount(ids[kept], minlength=9).cumsum(0), (1, 0))
    part = evaluate_ranks(
        corpus.ranks[kept], corpus.judged[kept], bounds, num_documents=50, measures=names, max_label=4
    )
    same(part, expected)
    everything = evaluate_ranks(
        corpus.flat(corpus.ranking), corpus.all[1], corpus.all[2], num_documents=50, measures=names, max_label=4
    )
    same(everything, expected)


def test_arguments_are_not_changed_and_kinds_of_numbers_make_no_difference():
    corpus = Corpus(30, seed=3)
    names = measures_of("default")
    given = [each.clone() for each in (corpus.ranks, corpus.judged, corpus.offsets)]
    expected = corpus.evaluate(measures=names, max_label=4)
    assert all(map(torch.equal, given, (corpus.ranks, corpus.judged, corpus.offsets)))
    for kind in (torch.int8, torch.int16, torch.int32):
        found = evaluate_ranks(
            given[0].to(kind), given[1].to(kind), given[2].int(), num_documents=30, measures=names, max_label=4
        )
        same(found, expected, atol=0)
    same(evaluate_ranks(*given, num_documents=np.int64(30), measures=names, max_label=4), expected, atol=0)
    for floats in (torch.float16, torch.float64):
        same(
            evaluate_ranks(given[0], given[1].to(floats), given[2], num_documents=30, measures=names, max_label=4),
            expected,
        )
    relevant = evaluate_ranks(given[0], given[1] > 0, given[2], num_documents=30, measures=["map", "ndcg@3"])
    same(relevant, evaluate_ranks(given[0], given[1].sign(), given[2], num_documents=30, measures=["map", "ndcg@3"]))


def test_names_are_those_of_evaluate():
    values = evaluate_ranks(*FIRST, num_documents=99, measures=["P@5", "precision@5", "ndcg_cut_10", "success@1"])
    assert list(values) == ["p@5", "ndcg@10", "hit@1"] and torch.equal(values["P_5"], values["p@5"])
    default = evaluate_ranks(*FIRST, num_documents=99)
    assert list(default) == list(evaluate(torch.zeros(1), torch.ones(1), torch.tensor([0, 1])))
    assert {value.dtype for value in default.values()} == {torch.float64}


@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("convention", POSSIBLE)
def test_batches_without_entries(offsets, convention):
    options = {"measures": measures_of(convention), "convention": convention, "max_label": 4}
    lists = len(offsets) - 1
    full = torch.arange(20.0).repeat(lists), torch.zeros(20 * lists), torch.arange(lists + 1) * 20
    same(evaluate_ranks([], [], offsets, num_documents=20, **options), evaluate(*full, **options))


def test_ties_that_a_search_has_decided():
    """Documents that are equal stand in the order of the corpus, in `evaluate` and in `document_ranks`."""
    generator = torch.Generator().manual_seed(4)
    documents = torch.randint(0, 2, (80, 3), generator=generator).double()
    queries = torch.randint(-1, 2, (7, 3), generator=generator).double()
    labels = torch.randint(0, 5, (7, 80), generator=generator) * (torch.rand(7, 80, generator=generator) < 0.2)
    list_of, rows = labels.nonzero(as_tuple=True)
    offsets = torch.nn.functional.pad(torch.bincount(list_of, minlength=7).cumsum(0), (1, 0))
    ranks = document_ranks(rows, queries, documents, offsets)
    names = measures_of("default")
    found = evaluate_ranks(ranks, labels[list_of, rows], offsets, num_documents=80, measures=names, max_label=4)
    scores = (queries @ documents.T).flatten()
    same(found, evaluate(scores, labels.flatten(), torch.arange(8) * 80, measures=names, max_label=4))


def test_large_batches_are_measured_in_pieces():
    """The lists over and over: more entries than are ranked at once."""
    corpus = Corpus(40, seed=5, queries=30)
    names = measures_of("default")
    expected = corpus.evaluate(measures=names, max_label=4)
    times = 450_000 // len(corpus.ranks)
    lengths = corpus.offsets.diff().repeat(times)
    corpus.ranks, corpus.judged = corpus.ranks.repeat(times), corpus.judged.repeat(times)
    corpus.offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    repeated = {name: value.repeat(times) for name, value in expected.items()}
    same(corpus.evaluate(measures=names, max_label=4), repeated, atol=1e-15)
    corpus.ranks[-1] = corpus.ranks[-2]
    with pytest.raises(ValueError, match=f"rank {corpus.ranks[-1]} comes twice in list {30 * times - 1}:"):
        corpus.evaluate()


@pytest.mark.parametrize("size", [2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 10**15])
def test_the_size_of_the_corpus_takes_neither_time_nor_memory(size):
    """And the ranks around the last number of 32 bits are in order."""
    ranks = torch.tensor([size, 1, size - 1, 2**31 - 2, size, 3])
    labels, offsets = torch.tensor([1, 0, 1, 2, 2, 1]), torch.tensor([0, 3, 4, 6])
    found = evaluate_ranks(ranks, labels, offsets, num_documents=size, measures=["map", "mrr", "p@100", "arp", "ndcg"])
    first, second = 1 / (size - 1), 2 / size
    assert found["map"].tolist() == pytest.approx([(first + second) / 2, 1 / (2**31 - 2), (1 / 3 + second) / 2])
    assert found["mrr"].tolist() == pytest.approx([first, 1 / (2**31 - 2), 1 / 3])
    assert found["p@100"].tolist() == [0, 0, 0.01]
    assert found["arp"].tolist() == pytest.approx([size - 0.5, 2**31 - 2, (2 * size + 3) / 3])
    gains = 1 / math.log2(size) + 1 / math.log2(size + 1), 1 / 2 + 3 / math.log2(size + 1)
    ideal = 1 + 1 / math.log2(3), 3 + 1 / math.log2(3)
    assert found["ndcg"][[0, 2]].tolist() == pytest.approx([a / b for a, b in zip(gains, ideal, strict=True)])
    narrow = evaluate_ranks(ranks, labels, offsets.int(), num_documents=size, measures=["p@3"], convention="letor")
    assert narrow["p@3"].tolist() == [0, 0, pytest.approx(1 / 3)]
    short = evaluate_ranks(ranks, labels, offsets.int(), num_documents=size, measures=["ndcg@5"], convention="letor")
    assert short["ndcg@5"].tolist() == [0, 0, pytest.approx(1 / math.log2(3) / 4)]


# --- other devices ---


def test_branches_for_other_devices_find_the_same_without_synchronisation():
    for real in (False, True):
        corpus = Corpus(70, seed=6, real=real)
        names = measures_of("default")
        expected = corpus.evaluate(measures=names, max_label=4)
        with Elsewhere(), Synchronisations() as counter:
            found = corpus.evaluate(measures=names, max_label=4)
        assert counter.found == []
        same(found, expected)


def test_runs_on_the_meta_device():
    given = [each.to("meta") for each in FIRST]
    for convention in POSSIBLE:
        options = {"measures": measures_of(convention), "convention": convention, "max_label": 4}
        found = evaluate_ranks(*given, num_documents=99, **options)
        assert {(value.device.type, *value.shape) for value in found.values()} == {("meta", 2)}


@pytest.mark.parametrize("wrong", [0, -3, 100])
def test_ranks_that_are_impossible_elsewhere(wrong):
    ranks, labels, offsets = FIRST
    ranks = ranks.clone()
    ranks[2] = wrong
    with Elsewhere():
        found = evaluate_ranks(ranks, labels, offsets, num_documents=99, measures=measures_of("default"), max_label=4)
    assert all(value.isnan().all() for value in found.values())


def test_one_graph_for_all_batches():
    names = ["ndcg@10", "map", "hit@3"]
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda size, *lists: evaluate_ranks(*lists, num_documents=size, measures=names),
        backend="eager",
        fullgraph=True,
        dynamic=True,
    )
    counters.clear()
    for size, queries in ((50, 9), (40, 12)):
        corpus = Corpus(size, seed=7, queries=queries)
        same(compiled(size, corpus.ranks, corpus.judged, corpus.offsets), corpus.evaluate(measures=names))
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


# --- what is refused ---


@pytest.mark.parametrize("family", sorted(MEASURES.keys() - set(RANKED)))
def test_measures_that_need_more_than_ranks(family):
    name = f"{family}@3" if MEASURES[family].cut != "none" else family
    assert not known_from_ranks([name])
    with pytest.raises(
        ValueError, match=f"^{name} cannot be computed from ranks.* choose among {', '.join(RANKED)}$"
    ) as caught:
        evaluate_ranks(*FIRST, num_documents=99, measures=["map", name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_conventions(convention):
    possible = convention in POSSIBLE
    assert known_from_ranks(["ndcg@10"], convention) is possible
    if not possible:
        why = {"xgboost": "rounds scores to float32", "trec": "by document id", "sklearn": "averages over equal scores"}
        with pytest.raises(ValueError, match=f"'{convention}' .*{why[convention]}.* ties are decided"):
            evaluate_ranks(*FIRST, num_documents=99, measures=["ndcg@10"], convention=convention)


def test_known_from_ranks():
    assert known_from_ranks([]) and known_from_ranks(measures_of("default")) and known_from_ranks(["P_5", "rr"])
    assert not known_from_ranks(["map", "auc"]) and not known_from_ranks(["map"], threshold=0)
    assert known_from_ranks(("map",), "letor", threshold=2)
    for wrong, told in (
        ((["mapp"],), "unknown measure 'mapp'"),
        (("map",), "must be a list of names"),
        ((["mrr"], "letor"), "does not define 'mrr'"),
        ((["map"], "treck"), "unknown convention='treck'"),
    ):
        with pytest.raises(ValueError, match=told):
            known_from_ranks(*wrong)


REFUSED = [
    ({"ranks": [4, 0, 90]}, r"^rank 0 of entry 1: ranks are 1\.\.num_documents=99$"),
    ({"ranks": [4, 1, 100]}, r"^rank 100 of entry 2: ranks are 1\.\.num_documents=99$"),
    ({"ranks": [-1, 1, 100]}, "^rank -1 of entry 0"),
    ({"ranks": [4, 4, 90]}, "^rank 4 comes twice in list 0: give every judged document of a query once"),
    ({"ranks": [4.0, 1.0, 90.0]}, "^ranks must be integers from 1, got float64"),
    ({"ranks": [4, None, 90]}, "^ranks must be integers from 1, got float64"),
    ({"ranks": torch.tensor([True, False, True])}, "^ranks must be integers from 1, got bool"),
    ({"ranks": [4, 1]}, "^offsets must rise from 0 to N = 2, got 0 to 3"),
    ({"labels": [1, 2]}, r"^expected ranks \(N,\), labels \(N,\), offsets \(Q\+1,\), got \(3,\), \(2,\), \(3,\)"),
    ({"ranks": torch.ones(3, 1).long()}, r"^expected ranks \(N,\)"),
    ({"ranks": [[4, 1, 90]]}, r"ranks must be a vector"),
    ({"labels": [1, -1, 1]}, "^label -1 of entry 1: labels must be 0 or more"),
    ({"labels": [1, math.nan, 1]}, "^1 of 3 labels are NaN"),
    ({"labels": [1, math.inf, 1]}, "labels must be finite numbers"),
    ({"offsets": [0, 2]}, "^offsets must rise from 0 to N = 3"),
    ({"offsets": [0, 2, 1, 3]}, "^offsets must rise"),
    ({"offsets": None}, "^say which rows make up a list"),
    ({"num_documents": 0}, "^num_documents must be an integer >= 1, the size of the corpus, got 0"),
    ({"num_documents": 99.0}, "^num_documents must be an integer >= 1, .* got 99.0"),
    ({"num_documents": None}, "^num_documents must be an integer >= 1, .* got None"),
    ({"measures": "map"}, "measures must be a list of names"),
    ({"measures": ["recall"]}, "unknown measure 'recall'"),
    ({"measures": ["ndcg@5-"]}, "is XGBoost's"),
    ({"measures": ["mrr"], "convention": "letor"}, "does not define 'mrr'"),
    ({"measures": ["err@5"]}, "^err needs max_label"),
    ({"measures": ["err@5"], "max_label": 1}, "^max_label must be the top label of the data, at least 2, got 1"),
    ({"threshold": 0}, "^threshold must be above 0, the label of documents without a judgement, got 0"),
    ({"labels": [1, 2000, 1]}, "gain 2\\^y - 1 of label 2000 is infinite"),
]


@pytest.mark.parametrize(("wrong", "told"), REFUSED)
def test_wrong_input_is_refused_in_one_line(wrong, told):
    given = {"ranks": FIRST[0], "labels": FIRST[1], "offsets": FIRST[2], "num_documents": 99} | wrong
    with pytest.raises(ValueError, match=told) as caught:
        evaluate_ranks(**given)
    assert "\n" not in str(caught.value)


def test_the_number_of_documents_has_to_be_given():
    with pytest.raises(TypeError, match="num_documents"):
        evaluate_ranks(*FIRST)


def test_equal_ranks_of_different_queries_are_none_that_come_twice():
    found = evaluate_ranks([3, 3, 3], [1, 1, 1], group=[1, 1, 1], num_documents=3, measures=["mrr"])
    assert found["mrr"].tolist() == pytest.approx([1 / 3] * 3)


def test_large_labels_warn_as_in_evaluate():
    with pytest.warns(DataWarning, match="labels above 31"):
        evaluate_ranks([1], [40], [0, 1], num_documents=9, measures=["ndcg"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_ranks([1], [40], [0, 1], num_documents=9, measures=["map", "arp"])
