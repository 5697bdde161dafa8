"""Relevant documents that were not retrieved, DCG and hits, and the other names of measures: against trec_eval,
scikit-learn and plain loops."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.reference import measures as reference
from torchrank import functional as F
from torchrank.functional import conventions, evaluate

CUTS = (1, 3, 5, 10, 30)
TREC_CUTS = {"ndcg": "ndcg_cut", "map": "map_cut", "p": "P", "recall": "recall", "hit": "success"}
TREC = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank"}
TREC |= {f"{ours}@{k}": f"{theirs}_{k}" for ours, theirs in TREC_CUTS.items() for k in CUTS}


class Search:
    """Queries with judged documents of which only some are retrieved, among others that nobody judged."""

    def __init__(self, seed, queries=40, grades=4):
        rng = np.random.default_rng(seed)
        self.judged, self.found = {}, {}
        for q in range(queries):
            names = [f"d{number}" for number in rng.permutation(60)]
            judged = rng.integers(0, 20)
            self.judged[f"q{q}"] = {name: int(rng.integers(0, grades)) for name in names[:judged]}
            retrieved = rng.permutation(names[judged // 2 : judged // 2 + rng.integers(0 if q else 1, 25)])
            self.found[f"q{q}"] = {name: float(rng.integers(0, 8)) for name in retrieved}

    def batch(self):
        """Scores, labels, offsets, the order of ids, and the judged labels with their offsets."""
        scores, labels, ties, sizes, known, judged = [], [], [], [0], [], [0]
        for query, found in self.found.items():
            scores += found.values()
            labels += [self.judged[query].get(name, 0) for name in found]
            ties += [sorted(found, reverse=True).index(name) for name in found]
            sizes.append(len(scores))
            known += self.judged[query].values()
            judged.append(len(known))
        lists = torch.tensor(scores, dtype=torch.float64), torch.tensor(labels), torch.tensor(sizes)
        return lists, torch.tensor(ties), (torch.tensor(known), torch.tensor(judged))

    def relevant(self, threshold=1):
        return torch.tensor([sum(y >= threshold for y in judged.values()) for judged in self.judged.values()])


@pytest.fixture(params=[0, 1, 2])
def search(request):
    return Search(request.param)


@pytest.mark.peers
def test_trec_eval_counts_what_was_not_retrieved(search):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    wanted = {"ndcg", "map", "recip_rank", *(f"{name}.{','.join(map(str, CUTS))}" for name in TREC_CUTS.values())}
    evaluator = pytrec_eval.RelevanceEvaluator({q: judged for q, judged in search.judged.items() if judged}, wanted)
    expected = evaluator.evaluate({q: found for q, found in search.found.items() if found and search.judged[q]})
    lists, ties, judged = search.batch()
    actual = evaluate(*lists, measures=tuple(TREC), convention="trec", tiebreak=ties, judged=judged)
    asked = 0
    for place, query in enumerate(search.found):
        for ours, theirs in TREC.items():
            value = expected[query][theirs] if query in expected else 0.0
            assert actual[ours][place].item() == pytest.approx(value, abs=1e-9), (query, ours)
        asked += query in expected
    assert asked > 20


def test_counts_are_enough_for_binary_labels():
    search = Search(4, grades=2)
    lists, ties, judged = search.batch()
    given = {"measures": tuple(TREC), "convention": "trec", "tiebreak": ties}
    whole = evaluate(*lists, **given, judged=judged)
    counted = evaluate(*lists, **given, num_relevant=search.relevant())
    assert all(torch.equal(counted[name], whole[name]) for name in whole)
    alone = F.ndcg(*lists, k=5, gain="linear", num_relevant=search.relevant())
    torch.testing.assert_close(alone, F.ndcg(*lists, k=5, gain="linear", judged=judged), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("k", [None, 1, 5, 70])
def test_functions_by_hand(search, k):
    """Values of the list alone, corrected for the documents that are missing in it."""
    lists, _, judged = search.batch()
    scores, labels, offsets = (part.numpy() for part in lists)
    given = {"num_relevant": search.relevant(2), "threshold": 2, "k": k}
    names = ("average_precision", "recall", "precision", "reciprocal_rank", "hit")
    values = {name: getattr(F, name)(*lists, **given) for name in names}
    for q, (block, total) in enumerate(zip(reference.blocks(offsets), search.relevant(2).tolist(), strict=True)):
        s, y = scores[block], labels[block]
        ranked = reference.ranked_relevance(s, y, 2)
        top = ranked[:k]
        found = sum(sum(ranked[: i + 1]) / (i + 1) for i, hit in enumerate(top) if hit)
        first = top.index(True) + 1 if any(top) else math.inf
        expected = {
            "average_precision": found / max(total, 1),
            "recall": sum(top) / max(total, 1),
            "precision": sum(top) / max(len(y) if k is None else k, 1),
            "reciprocal_rank": 1 / first,
            "hit": float(any(top)),
        }
        for name, value in expected.items():
            actual = values[name][q].item()
            assert actual == pytest.approx(value if total else math.nan, abs=1e-12, nan_ok=True), name
        all_labels = [float(y) for y in search.judged[f"q{q}"].values()]
        ideal = reference.ideal_dcg(all_labels, k)
        actual = F.ndcg(*lists, k=k, judged=judged)[q].item()
        order = reference.stable_order(s)
        wanted = reference.dcg([y[i] for i in order], k) / ideal if ideal > 0 else math.nan
        assert actual == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def test_mean_ndcg_is_the_mean_of_ndcg(search):
    lists, _, judged = search.batch()
    found = evaluate(*lists, measures=["mean_ndcg"], judged=judged)["mean_ndcg"]
    longest = int(lists[2].diff().max())
    at = torch.stack([F.ndcg(*lists, k=k, judged=judged) for k in range(1, longest + 1)])
    for q, length in enumerate(lists[2].diff().tolist()):
        expected = at[:length, q].mean() if length else torch.tensor(torch.nan, dtype=torch.float64)
        torch.testing.assert_close(found[q], expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_without_missing_documents_nothing_changes():
    batch = reference.tensors(*reference.random_batch(3))
    labels, offsets = batch[1:]
    measures = ("ndcg", "ndcg@5", "mean_ndcg", "dcg@3", "map", "map@3", "p@5", "recall@5", "hit@2", "mrr", "err@5")
    for name, used in (("default", measures), ("letor", ("ndcg@5", "mean_ndcg", "map")), ("lightgbm", ("map@3",))):
        plain = evaluate(*batch, measures=used, convention=name, max_label=4)
        judged = evaluate(*batch, measures=used, convention=name, max_label=4, judged=(labels, offsets))
        for measure in used:
            torch.testing.assert_close(judged[measure], plain[measure], rtol=0, atol=1e-14, equal_nan=True)


def test_large_batches_are_measured_in_pieces(search):
    """The lists over and over: more entries than `evaluate` ranks at once."""
    lists, ties, judged = search.batch()
    times = 450_000 // len(lists[0])
    many = [part.repeat(times) for part in (*lists[:2], ties, judged[0], search.relevant())]
    bounds = [torch.nn.functional.pad(part.diff().repeat(times).cumsum(0), (1, 0)) for part in (lists[2], judged[1])]
    trec = {"measures": tuple(TREC), "convention": "trec"}
    whole = evaluate(*lists, tiebreak=ties, judged=judged, **trec)
    values = evaluate(*many[:2], bounds[0], tiebreak=many[2], judged=(many[3], bounds[1]), **trec)
    whole |= evaluate(*lists, measures=["map@7", "recall@6"], num_relevant=search.relevant())
    values |= evaluate(*many[:2], bounds[0], measures=["map@7", "recall@6"], num_relevant=many[4])
    for name, value in values.items():
        torch.testing.assert_close(value, whole[name].repeat(times), rtol=0, atol=0, equal_nan=True)


LIST = torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 2, 1]), torch.tensor([0, 2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.recall(*LIST, num_relevant=torch.tensor([1])), r"num_relevant must be \(2,\), one per list"),
        (lambda: F.recall(*LIST, num_relevant=torch.tensor([1, 0])), r"num_relevant\[1\] is 0, but the list has 1 rel"),
        (lambda: F.ndcg(*LIST, num_relevant=torch.tensor([1, 1])), "does not tell: give judged="),
        (lambda: F.ndcg(*LIST, judged=(LIST[1], torch.tensor([0, 3]))), "judged has 1 lists of labels"),
        (lambda: F.ndcg(*LIST, judged=(LIST[1], torch.tensor([0, 1, 2]))), "offsets must rise from 0 to N = 3"),
        (lambda: evaluate(*LIST, num_relevant=torch.tensor([1])), "num_relevant must be of 2 lists"),
        (lambda: evaluate(*LIST, judged=(LIST[1], torch.tensor([0, 3]))), "judged has 1 lists of labels"),
        (lambda: evaluate(*LIST, measures=["map"], judged=(LIST[1][:1], torch.tensor([0, 1, 1]))), "relevant entries"),
    ],
)  # fmt: skip
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- DCG and hits ---


@pytest.mark.parametrize("k", [None, 1, 3, 70])
@pytest.mark.parametrize("ties", ["stable", "average", "worst"])
def test_dcg_is_its_transcription(k, ties):
    batch = reference.random_batch(70, longest=7)
    for gain, discount in itertools.product(("exp2", "linear"), ("log2p1", "letor")):
        actual = F.dcg(*reference.tensors(*batch), k=k, gain=gain, discount=discount, ties=ties)
        for q, block in enumerate(reference.blocks(batch[2])):
            s, y = batch[0][block], batch[1][block]

            def value(order, y=y, gain=gain, discount=discount):
                return reference.dcg([y[i] for i in order], k, gain, discount)

            expected = reference.over_ties(value, s, ties) if (y > 0).any() else math.nan
            assert actual[q].item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.peers
def test_dcg_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    batch = reference.random_batch(71)
    found = evaluate(*reference.tensors(*batch), measures=["dcg", "dcg@3"], convention="sklearn")
    for q, block in enumerate(reference.blocks(batch[2])):
        s, y = batch[0][block], batch[1][block]
        if len(s) > 1:
            assert found["dcg"][q].item() == pytest.approx(metrics.dcg_score([y], [s]), abs=1e-9)
            assert found["dcg@3"][q].item() == pytest.approx(metrics.dcg_score([y], [s], k=3), abs=1e-9)


# --- names ---


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("precision@5", "p@5"), ("P@5", "p@5"), ("P_5", "p@5"), ("NDCG@5", "ndcg@5"), ("ndcg_cut_10", "ndcg@10"),
        ("hit@5", "hit@5"), ("success_1", "hit@1"), ("Hit_Rate@3", "hit@3"), ("dcg@5", "dcg@5"), ("MAP", "map"),
        ("map_cut_5", "map@5"), ("recall_10", "recall@10"), ("recip_rank", "mrr"), ("RR@10", "mrr@10"), ("AP", "map"),
        ("knn_error@3", "knn_error@3"), ("mean_ndcg", "mean_ndcg"), ("all_pairs_error", "all_pairs_error"),
        ("NDCG@5-", "ndcg@5-"),
    ],
)  # fmt: skip
def test_measures_have_one_name_and_understand_others(name, own):
    assert conventions.canonical(name) == own == conventions.canonical(own)


def test_values_are_found_by_any_name():
    found = evaluate(*LIST, measures=["P@2", "precision@2", "NDCG", "recip_rank"])
    assert list(found) == ["p@2", "ndcg", "mrr"]
    assert found["P@2"] is found["p@2"] and found["RR"] is found["mrr"]
    for missing in ("map", "nothing", 3):
        with pytest.raises(KeyError):
            found[missing]


def test_arrays_are_taken_for_what_was_not_retrieved():
    lists, _, judged = Search(6).batch()
    arrays = [part.numpy() for part in lists]
    expected = evaluate(*lists, measures=["ndcg@5", "map"], judged=judged)
    found = evaluate(*arrays, measures=["ndcg@5", "map"], judged=(judged[0].tolist(), judged[1].numpy()))
    assert all(torch.equal(found[name].nan_to_num(-1), value.nan_to_num(-1)) for name, value in expected.items())
    counts = Search(6).relevant()
    found = F.recall(*arrays, k=5, num_relevant=counts.tolist())
    assert torch.equal(found.nan_to_num(-1), F.recall(*lists, k=5, num_relevant=counts).nan_to_num(-1))
    with pytest.raises(ValueError, match=r"judged must be \(labels, offsets\)"):
        evaluate(*lists, judged=judged[0])
