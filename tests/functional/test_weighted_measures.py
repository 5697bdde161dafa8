"""Weights in measures, and the measures that other tools have: against plain loops, peers' values, scipy."""

import inspect
import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch

from tests.laws.cases import ROWS, batch
from tests.reference import measures as reference
from tests.reference.measures import blocks, random_batch, stable_order, tensors
from torchrank import RankingMetrics
from torchrank import functional as F

NAN = float("nan")
LOG3 = math.log2(3)
MEASURES = {
    name: row
    for name, row in ROWS.items()
    if not row.loss and "list_weights" in inspect.signature(row.function).parameters
}
WEIGHTED = {name: row for name, row in MEASURES.items() if "weights" in inspect.signature(row.function).parameters}
NEW = [
    *(("hits", {"k": k, "threshold": t, "empty": e}) for k in (None, 1, 3, 70) for t in (1, 2) for e in (NAN, 0.0)),
    *(("r_precision", {"threshold": t, "empty": e}) for t in (1, 2, 0.5) for e in (NAN, 0.0)),
    *(("rbp", {"p": p, "k": k}) for p in (0.5, 0.8, 0.99) for k in (None, 1, 4)),
    ("arp", {}),
    ("arp", {"empty": 0.0}),
    ("opa", {}),
    ("kendall_tau", {}),
]


def same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=atol, equal_nan=True)


@pytest.mark.parametrize("real", [False, True])
def test_new_measures_are_their_plain_loops(real):
    scores, labels, offsets = random_batch(50, real=real)
    for name, options in NEW:
        found = getattr(F, name)(*tensors(scores, labels, offsets), **options)
        expected = reference.per_list(getattr(reference, name), scores, labels, offsets, **options)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=f"{name} {options}")


@pytest.mark.parametrize("real", [False, True])
def test_tau_is_that_of_scipy(real):
    scores, labels, offsets = random_batch(51, real=real)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [scipy.stats.kendalltau(scores[each], labels[each]).statistic for each in blocks(offsets)]
    np.testing.assert_allclose(F.kendall_tau(*tensors(scores, labels, offsets)), expected, rtol=0, atol=1e-12)


def test_overlap_is_that_of_sets():
    scores, _, offsets = random_batch(52)
    other, *_ = random_batch(53)
    other = np.resize(other, len(scores))
    for p in (0.5, 0.9, 0.999):
        for k in (None, 1, 3, 70):
            found = F.rank_biased_overlap(*tensors(scores, other, offsets), p=p, k=k)
            expected = reference.per_list(reference.rank_biased_overlap, scores, other, offsets, p=p, k=k)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    same(F.rank_biased_overlap(*tensors(scores, scores, offsets)).nan_to_num(1.0), torch.ones(60, dtype=torch.float64))


# values of the peers' own tests


@pytest.mark.parametrize(
    ("name", "expected"),  # google/rax, rax/_src/metrics_test.py: test_computes_weighted_metric
    [("dcg", 2 / LOG3 + 1 / 2), ("ndcg", (2 / LOG3 + 1 / 2) / (2 + 1 / LOG3))],
)
def test_weighted_values_of_rax(name, expected):
    value = getattr(F, name)([0.0, 3.0, 1.0, 2.0], [0, 0, 1, 1], [0, 4], weights=[1.0, 2.0, 1.0, 2.0])
    assert value.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "scores", "labels", "weights", "expected"),  # tensorflow/ranking: python/metrics_impl_test.py
    [
        ("arp", [1.0, 3.0, 2.0], [0, 0, 1], None, 2),
        ("arp", [1.0, 2.0, 3.0], [0, 1, 2], None, (1 * 2 + 2 * 1) / (2 + 1)),
        ("arp", [1.0, 3.0, 2.0], [0, 0, 1], [1.0, 2.0, 3.0], 2),
        ("arp", [1.0, 2.0, 3.0], [0, 1, 2], [4.0, 5.0, 6.0], 2 * 5 / 17 + 12 / 17),
        ("opa", [3.0, 2.0, 1.0], [0, 1, 0], None, 1 / 2),
    ],
)
def test_values_of_tf_ranking(name, scores, labels, weights, expected):
    assert getattr(F, name)(scores, labels, [0, 3], weights=weights).item() == pytest.approx(expected)


# weights


def weighted_dcg(gains, k=None):
    return math.fsum(gain / math.log2(place + 2) for place, gain in enumerate(gains[:k]))


def plain(name, scores, labels, weights, k=None):
    """One list with weights; nan where nothing counts."""
    order = stable_order(scores)
    gains = [(2.0**y - 1) * w for y, w in zip(labels, weights, strict=True)]
    relevant = [(labels[i] >= 1) * weights[i] for i in order]
    total = math.fsum(relevant)
    pairs = [(i, j) for i in range(len(labels)) for j in range(len(labels)) if labels[i] > labels[j]]
    first = next((place for place, i in enumerate(order) if labels[i] >= 1), None)
    if name in ("ndcg", "dcg"):
        ideal = weighted_dcg(sorted(gains, reverse=True), k)
        value = weighted_dcg([gains[i] for i in order], k)
        return NAN if ideal == 0 else value if name == "dcg" else value / ideal
    if name in ("opa", "auc", "all_pairs_error"):
        pairs = [(i, j) for i, j in pairs if name != "auc" or (labels[i] >= 1 > labels[j])]
        tied = 0 if name == "opa" else 0.5
        right = math.fsum(weights[i] * (scores[i] > scores[j] or tied * (scores[i] == scores[j])) for i, j in pairs)
        whole = math.fsum(weights[i] for i, _ in pairs)
        return NAN if whole == 0 else 1 - right / whole if name == "all_pairs_error" else right / whole
    if name == "domination_error":
        upper = sorted({i for i, _ in pairs})
        whole = math.fsum(weights[i] for i in upper)
        beaten = [i for i in upper if any(scores[j] > scores[i] for other, j in pairs if other == i)]
        return math.fsum(weights[i] for i in beaten) / whole if whole else NAN
    if name == "arp":
        shares = [labels[i] * weights[i] for i in order]
        whole = math.fsum(shares)
        return math.fsum(place * share for place, share in enumerate(shares, 1)) / whole if whole else NAN
    if total == 0:
        return NAN
    seen = math.fsum(relevant[:k])
    number = sum(y >= 1 for y in labels)
    counts = np.cumsum([labels[i] >= 1 for i in order])
    precisions = [counts[place] / (place + 1) * each for place, each in enumerate(relevant)]
    found = first is not None and (k is None or first < k)
    return {
        "precision": seen / (k or len(labels)),
        "recall": seen / total,
        "hits": seen,
        "r_precision": math.fsum(relevant[:number]) / total,
        "rbp": 0.2 * math.fsum(each * 0.8**place for place, each in enumerate(relevant[:k])),
        "average_precision": math.fsum(precisions[:k]) / total,
        "reciprocal_rank": relevant[first] / (first + 1) if found else 0.0,
        "hit": relevant[first] if found else 0.0,
    }[name]


CUT = ("ndcg", "dcg", "precision", "recall", "hits", "rbp", "average_precision", "reciprocal_rank", "hit")
WHOLE = ("opa", "auc", "all_pairs_error", "domination_error", "arp", "r_precision")


@pytest.mark.parametrize(
    ("name", "k"), [*((each, k) for each in CUT for k in (None, 1, 3)), *((w, None) for w in WHOLE)]
)
def test_weighted_measures_are_plain_loops(name, k):
    scores, labels, offsets = random_batch(54)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 3.0], len(scores))
    lists = [[part[each].tolist() for part in (scores, labels, weights)] for each in blocks(offsets)]
    options = {} if k is None else {"k": k}
    found = getattr(F, name)(*tensors(scores, labels, offsets), weights=torch.tensor(weights), **options)
    np.testing.assert_allclose(found, [plain(name, *each, k=k) for each in lists], rtol=0, atol=1e-12)


@pytest.mark.parametrize("row", WEIGHTED.values(), ids=WEIGHTED)
def test_ones_are_none(row):
    scores, labels, offsets = batch(60)
    if row.options.get("ties") == "average" and row.function is F.average_precision:
        with pytest.raises(ValueError, match="has no weights"):
            row(scores, labels, offsets, weights=torch.ones(len(scores)))
        return
    same(row(scores.round(), labels, offsets, weights=torch.ones(len(scores))), row(scores.round(), labels, offsets))


@pytest.mark.parametrize("row", MEASURES.values(), ids=MEASURES)
def test_the_weight_of_a_list_multiplies_its_value(row):
    scores, labels, offsets = batch(61)
    factors = torch.linspace(0, 3, 30, dtype=torch.float64)
    same(row(scores, labels, offsets, list_weights=factors), row(scores, labels, offsets) * factors)
    with pytest.raises(ValueError, match=r"list_weights\[0\] is -1.0"):
        row(scores, labels, offsets, list_weights=factors - 1)


def test_evaluate_takes_weights():
    scores, labels, offsets = batch(62)
    weights, factors = torch.rand(len(scores), dtype=torch.float64), torch.rand(30, dtype=torch.float64)
    names = {"ndcg@5": ("ndcg", {"k": 5}), "map": ("average_precision", {}), "rbp": ("rbp", {}), "opa": ("opa", {})}
    names |= {"hits@3": ("hits", {"k": 3}), "r_precision": ("r_precision", {}), "arp": ("arp", {})}
    found = F.evaluate(scores, labels, offsets, measures=list(names), weights=weights, list_weights=factors)
    for name, (function, options) in names.items():
        expected = getattr(F, function)(scores, labels, offsets, weights=weights, list_weights=factors, **options)
        same(found[name], expected)
    same(F.evaluate(scores, labels, offsets, measures=["tau"])["tau"], F.kendall_tau(scores, labels, offsets))
    with pytest.raises(ValueError, match="not retrieved"):
        F.evaluate(scores, labels, offsets, measures=["map"], weights=weights, num_relevant=offsets.diff())


def test_metrics_take_weighted_means():
    scores, labels, offsets = batch(63)
    factors = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    metrics, split = RankingMetrics(["ndcg@5", "rprec"]), RankingMetrics(["ndcg@5", "rprec"])
    metrics.update(scores, labels, offsets, list_weights=factors)
    for first, last in ((0, 13), (13, 30)):
        a, b = offsets[[first, last]].tolist()
        lists = scores[a:b], labels[a:b], offsets[first : last + 1] - a
        split.update(*lists, list_weights=factors[first:last].tolist())
    for name, values in F.evaluate(scores, labels, offsets, measures=["ndcg@5", "r_precision"]).items():
        known = ~values.isnan()
        expected = (values * factors)[known].sum() / factors[known].sum()
        assert metrics.compute()[name].item() == pytest.approx(expected.item())
        assert split.compute()[name].item() == pytest.approx(expected.item())


@pytest.mark.parametrize("p", [0, 1, -0.5, "a"])
def test_persistence_is_a_probability(p):
    with pytest.raises(ValueError, match="p must be between 0 and 1"):
        F.rbp([1.0], [1], [0, 1], p=p)
