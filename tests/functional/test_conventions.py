"""`evaluate`: the same numbers as the single functions, from one sort; what it refuses, and what it says of itself.

The conventions against the tools they are named after: tests/golden/test_conventions.py.
"""

import plain
import pytest
import torch

import torchrank.functional as F
from torchrank.functional import CONVENTIONS, conventions, describe, evaluate

SCORES = torch.tensor([3.0, 1.0, 1.0, 2.0, 0.5, 0.5, 0.5, 4.0, 1.0], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 0, 1, 0, 3, 0, 0])
OFFSETS = torch.tensor([0, 4, 4, 7, 9])
BATCH = (SCORES, LABELS, OFFSETS)


def test_evaluate_equals_the_single_functions():
    names = ["ndcg", "ndcg@2", "ndcg@100", "mean_ndcg", "map", "map@2", "p@2", "recall@2", "mrr", "mrr@1"]
    found = evaluate(
        *BATCH, measures=[*names, "err@3", "err", "auc", "domination_error", "all_pairs_error"], max_label=3
    )
    expected = [
        F.ndcg(*BATCH),
        F.ndcg(*BATCH, k=2),
        F.ndcg(*BATCH, k=100),
        F.mean_ndcg(*BATCH),
        F.average_precision(*BATCH),
        F.average_precision(*BATCH, k=2),
        F.precision(*BATCH, k=2),
        F.recall(*BATCH, k=2),
        F.reciprocal_rank(*BATCH),
        F.reciprocal_rank(*BATCH, k=1),
        F.err(*BATCH, max_label=3, k=3),
        F.err(*BATCH, max_label=3),
        F.auc(*BATCH),
        F.domination_error(*BATCH),
        F.all_pairs_error(*BATCH),
    ]
    for value, (name, other) in zip(expected, found.items(), strict=True):
        torch.testing.assert_close(other, value, rtol=0, atol=0, equal_nan=True, msg=name)


def test_one_sort_for_all_cutoffs(monkeypatch):
    calls, sort = [], torch.sort
    monkeypatch.setattr(torch, "sort", lambda *a, **o: calls.append(1) or sort(*a, **o))
    evaluate(*BATCH, measures=["ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr", "p@5", "err"], max_label=3)
    assert len(calls) == 1  # of keys; float64 scores that differ in their last digits only would take two more
    calls.clear()
    evaluate(SCORES.float(), LABELS, OFFSETS)
    assert len(calls) == 1


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("convention", ["default", "trec"])
def test_pieces_of_any_size_give_the_same_values(monkeypatch, size, convention):
    tiebreak = torch.arange(9, 0, -1)
    whole = evaluate(*BATCH, measures=["ndcg@2", "map", "mrr"], convention=convention, tiebreak=tiebreak)
    monkeypatch.setattr(conventions, "ENTRIES_AT_ONCE", size)
    assert len(conventions.pieces(OFFSETS)) > 1
    parts = evaluate(*BATCH, measures=["ndcg@2", "map", "mrr"], convention=convention, tiebreak=tiebreak)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=0, equal_nan=True)


def test_values_are_float64_for_any_scores():
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert {value.dtype for value in evaluate(SCORES.to(dtype), LABELS, OFFSETS).values()} == {torch.float64}


def test_threshold_replaces_that_of_the_convention():
    two = evaluate(*BATCH, measures=["map", "p@2", "ndcg@2"], convention="letor", threshold=2)
    expected = plain.each(plain.average_precision, *BATCH, threshold=2, empty=0)
    assert two["map"].tolist() == pytest.approx(expected.tolist())
    assert two["p@2"].tolist() == [0.0, 0.0, 0.0, 0.0]
    one = evaluate(*BATCH, measures=["ndcg@2"], convention="letor")
    assert two["ndcg@2"].tolist() == one["ndcg@2"].tolist()  # graded, so it does not depend on the threshold


def test_letor_counts_short_lists_as_zero():
    values = evaluate(*BATCH, measures=["ndcg@3", "ndcg@4", "mean_ndcg"], convention="letor")
    assert values["ndcg@4"][2].item() == 0 < values["ndcg@3"][2].item()
    expected = plain.each(plain.mean_ndcg, *BATCH, discount="letor", empty=0)
    assert values["mean_ndcg"].tolist() == pytest.approx(expected.tolist())


def test_lightgbm_relevance_is_above_one_half():
    labels = torch.tensor([0.5, 0.5000001, 0.0])
    scores, offsets = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 3])
    assert evaluate(scores, labels, offsets, measures=["map"], convention="lightgbm")["map"].item() == 0.5


def test_tiebreak_orders_equal_scores():
    scores, labels, offsets = torch.zeros(3), torch.tensor([0, 0, 1]), torch.tensor([0, 3])
    for tiebreak, value in (([2, 1, 0], 1), ([0, 2, 1], 1 / 2), ([0, 1, 2], 1 / 3)):
        found = evaluate(scores, labels, offsets, measures=["mrr"], convention="trec", tiebreak=torch.tensor(tiebreak))
        assert found["mrr"].item() == pytest.approx(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": ["ndgc@5"]}, "Known measures: ndcg@k, ndcg, mean_ndcg"),
        ({"measures": ["p"]}, "p@k"),
        ({"measures": ["auc@5"]}, "unknown measure"),
        ({"measures": ["mrr"], "convention": "sklearn"}, "does not define 'mrr': it has ndcg"),
        ({"measures": ["mrr@5"], "convention": "trec"}, "does not define"),
        ({"measures": ["ndcg@5-"]}, "xgboost"),
        ({"convention": "ranklib"}, "lightgbm"),
        ({"measures": ["err"]}, "max_label"),
        ({"measures": ["map"], "convention": "trec"}, "tiebreak"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(*BATCH, **options)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_measure_of_a_convention_runs_on_meta_tensors(name):
    cut = {family: "@3" for family in ("p", "recall", "knn_error")}
    measures = [family + cut.get(family, "") for family in CONVENTIONS[name].measures] + ["ndcg@1", "ndcg@5"]
    meta = [part.to("meta") for part in BATCH]
    given = {"tiebreak": meta[1], "classes": meta[1], "query_classes": meta[2][1:]}
    values = evaluate(*meta, measures=measures, convention=name, max_label=3, max_length=4, num_grades=4, **given)
    assert all(value.shape == (4,) and value.device.type == "meta" for value in values.values())


def test_describe():
    text = describe("letor", threshold=2)
    assert "1, 1, 1/log2(rank)" in text and "y>=2" in text and "count 0" in text and "shorter" in text
    assert "y>0.5" in describe("lightgbm") and "left out" in describe() and "document id" in describe("trec")
    assert "relevant y" not in describe("sklearn")


def test_xgboost_sees_scores_in_float32():
    lists = torch.tensor([1.0, 1.0 + 1e-9], dtype=torch.float64), torch.tensor([0, 1]), torch.tensor([0, 2])
    assert evaluate(*lists, measures=["ndcg"], convention="lightgbm")["ndcg"] == 1
    assert evaluate(*lists, measures=["ndcg"], convention="xgboost")["ndcg"].item() == pytest.approx(0.6309297535714575)
    assert "rounding to float32" in describe("xgboost")


def test_a_string_of_measures_and_too_few_grades_are_refused():
    scores, labels, offsets = torch.tensor([1.0, 2.0]), torch.tensor([0, 4]), torch.tensor([0, 2])
    with pytest.raises(ValueError, match="list of names"):
        evaluate(scores, labels, offsets, measures="map")
    with pytest.raises(ValueError, match=r"num_grades=3 means labels 0\.\.2"):
        evaluate(scores, labels, offsets, measures=["ndcg@5"], num_grades=3)
