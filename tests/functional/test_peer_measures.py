"""Measures against the expected values of other libraries' own tests, with the test that each value comes from.

rax: google/rax, rax/_src/metrics_test.py. TF-Ranking: tensorflow/ranking, tensorflow_ranking/python, classes of
metrics_impl_test.py and tests of keras/metrics_test.py ("keras"), metrics_test.py and losses_impl_test.py. allRank:
allegro/allRank, tests/losses.

Entries of label -1 are padded, masked or (a score of -inf in rax) not retrieved, and are left out. Lists without a
value count 0 in these libraries: `empty=0` here. Where conventions differ, a row names the function below that has
theirs.
"""

import inspect
from math import log, log2

import numpy as np
import pytest
import torch

from torchrank import RankingMetrics
from torchrank import functional as F

NAN = float("nan")
D1, D2, D3, D4 = (1 / log2(1 + rank) for rank in (1, 2, 3, 4))


def retrieved_precision(scores, labels, offsets, *, k, empty):
    """rax and TF-Ranking divide by the entries that were retrieved, at most those of the list; `precision` by k."""
    return F.hits(scores, labels, offsets, k=k, empty=empty) / offsets.diff().clamp(min=1, max=k)


def half(labels):
    return labels / 2


def tenths(ranks):
    return 1 / (ranks + 10)


def inverse(ranks):
    return 1 / ranks


ONE = [(0, 3, 1, 2)]
TWO = [(0, 3, 1, 2), (1, 4, 3, 2)], [(0, 0, 1, 1), (2, 0, 0, 1)], {}
REDUCED = [(2, 1, 3), (1, 0.5, 1.5)], [(1, 0, 0), (0, 1, 2)], {}
TOP = ONE, [(1, 0, 1, 1)], {}
RETRIEVED = [(0, 5, 2, 0, 1)], [(-1, 0, 1, -1, 0)]  # two of five were not, one of them relevant
NOTHING = {
    "reciprocal_rank": [0], "recall": [0], "recall@3": [0], "precision": [0], "precision@3": [0],
    "average_precision": [0], "dcg": [0], "ndcg": [0], "opa": [0],
}  # fmt: skip
SEGMENTS = [(0, 2), (1, 3, 4), (7, 6), (5,)], [(0, 2), (1, 0, 0), (0, 1), (2,)], {}
MASKED = [(0, 1), (2, 3, 4), (7, 5), (6,)], [(0, 1), (2, -1, 0), (0, -1), (1,)], {}
BATCHES = [(0, 1), (2, 3), (4,), (7, 5), (6,)], [(0, 1), (2, 0), (0,), (0, 2), (1,)], {}

RAX = [
    ("test_computes_metric_value", (ONE, [(0, 0, 1, 1)], {}), {
        "reciprocal_rank": [1 / 2], "recall": [1], "recall@3": [1], "precision": [1 / 2], "precision@3": [2 / 3],
        "average_precision": [(1 / 2 + 2 / 3) / 2], "dcg": [D2 + D3], "ndcg": [(D2 + D3) / (D1 + D2)], "opa": [2 / 4],
    }),
    ("test_computes_metric_value_on_batch_with_vmap", TWO, {
        "reciprocal_rank": [1 / 2, 1 / 3], "recall": [1, 1], "recall@3": [1, 1 / 2], "precision": [1 / 2, 1 / 2],
        "precision@3": [2 / 3, 1 / 3], "average_precision": [(1 / 2 + 2 / 3) / 2, (1 / 3 + 1 / 2) / 2],
        "dcg": [D2 + D3, D3 + 3 * D4], "ndcg": [(D2 + D3) / (D1 + D2), (D3 + 3 * D4) / (3 * D1 + D2)],
        "opa": [2 / 4, 0],
    }),
    ("test_computes_reduced_metric", REDUCED, {
        "reciprocal_rank": [1 / 2, 1], "precision@2": [1 / 2, 1 / 2], "recall@2": [1, 1 / 2],
        "average_precision": [1 / 2, (1 + 2 / 3) / 2], "dcg": [D2, 3 * D1 + D3],
        "ndcg": [D2, (3 * D1 + D3) / (3 + D2)], "opa": [2 / 4, 2 / 3],
    }),
    ("test_computes_metric_with_topn_1", TOP, {
        "reciprocal_rank@1": [0], "recall@1": [0], "precision@1": [0], "average_precision@1": [0], "dcg@1": [0],
        "ndcg@1": [0],
    }),
    ("test_computes_metric_with_topn_3", TOP, {
        "reciprocal_rank@3": [1 / 2], "recall@3": [2 / 3], "precision@3": [2 / 3],
        "average_precision@3": [(1 / 2 + 2 / 3) / 3], "dcg@3": [D2 + D3], "ndcg@3": [(D2 + D3) / (D1 + D2 + D3)],
    }),
    ("test_computes_metric_value_with_all_masked", (ONE, [(-1, -1, -1, -1)], {}), NOTHING),
    ("test_computes_metric_value_with_no_relevant_labels", (ONE, [(0, 0, 0, 0)], {}), NOTHING),
    ("test_treats_neginf_as_unranked_items", (*RETRIEVED, {"num_relevant": [2]}), {
        "reciprocal_rank": [1 / 2], "precision": [1 / 3], "recall": [1 / 2], "average_precision": [(1 / 2) / 2],
        "ndcg": [D2 / (D1 + D2)],
    }),
    ("test_treats_neginf_as_unranked_items", (*RETRIEVED, {}), {"dcg": [D2]}),
    ("test_ignores_lists_containing_only_invalid_items", (
        [(0, 3, 1, 2), (3, 1, 4, 2)], [(0, 0, 1, 1), (-1, -1, -1, -1)], {"empty": NAN}), {
        "reciprocal_rank": [1 / 2, NAN], "precision@2": [1 / 2, NAN], "recall@2": [1 / 2, NAN],
        "average_precision": [(1 / 2 + 2 / 3) / 2, NAN], "dcg": [D2 + D3, NAN],
        "ndcg": [(D2 + D3) / (D1 + D2), NAN],
    }),
    # the next four are compared with padded lists in rax: these are the values of the lists
    ("test_computes_metric_with_segments", SEGMENTS, {
        "reciprocal_rank": [1, 1 / 3, 1 / 2, 1], "precision@1": [1, 0, 0, 1], "recall@1": [1, 0, 0, 1],
        "average_precision": [1, 1 / 3, 1 / 2, 1], "dcg": [3, D3, D2, 3], "ndcg": [1, D3, D2, 1],
    }),
    ("test_computes_metric_with_segments_and_mask", MASKED, {
        "reciprocal_rank": [1, 1 / 2, 0, 1], "precision@1": [1, 0, 0, 1], "recall@1": [1, 0, 0, 1],
        "average_precision": [1, 1 / 2, 0, 1], "dcg": [1, 3 * D2, 0, 1], "ndcg": [1, D2, 0, 1],
    }),
    ("test_computes_metric_with_segments_and_batch_dim", BATCHES, {
        "reciprocal_rank": [1, 1 / 2, 0, 1 / 2, 1], "precision@1": [1, 0, 0, 0, 1], "recall@1": [1, 0, 0, 0, 1],
        "average_precision": [1, 1 / 2, 0, 1 / 2, 1], "dcg": [1, 3 * D2, 0, 3 * D2, 1], "ndcg": [1, D2, 0, D2, 1],
    }),
    ("test_computes_metric_with_segments_and_cutoff", SEGMENTS, {
        "reciprocal_rank@2": [1, 0, 1 / 2, 1], "retrieved_precision@2": [1 / 2, 0, 1 / 2, 1],
        "recall@2": [1, 0, 1, 1], "average_precision@2": [1, 0, 1 / 2, 1], "dcg@2": [3, 0, D2, 3],
        "ndcg@2": [1, 0, D2, 1],
    }),
    ("doctest of metrics.py", ([(2, 1, 3), (1, 0.5, 1.5)], [(2, 0, 1), (0, 0, 1)], {}), {"ndcg": [0.79670763, 1]}),
    ("doctest of metrics.py, mask", ([(2, 1, 0), (1, 0.5, 1.5)], [(1, 0, -1), (0, 0, 1)], {}), {"ndcg": [1, 1]}),
]  # fmt: skip

THREE = [(3, 2, 1)] * 3
GRADED = [(4, 3, 2, 1)], [(0, 3, 1, 0)]
PADDED = [(1, 4, 3, 2)], [(2, -1, 1, 0)], {}
PAIR = [(1, 3, 2), (1, 2, 3)], [(0, 0, 1), (0, 1, 2)]
WEIGHTS = {"weights": [1, 2, 3, 4, 5, 6]}
LISTS = [(1, 3, 2), (1, 2, 3), (3, 1, 2)], [(0, 0, 1), (0, 1, 2), (0, 1, 0)], {}
RAGGED = [(1, 2, 0), (1, 2), (3, 4, 2, 1)], [(1, 0, 0), (0, 2), (2, 0, 1, 0)]
RAGGED_WEIGHTS = {"weights": [2, 1, 4, 2, 1, 2, 1, 4, 8]}
LATE = [(1, 2, 0), (1, 2), (1, 4, 2, 3)], RAGGED[1], {}
RANKED = [(4, 3, 2, 1), (4, 2, 1, 3), (4, 3, 2, 1)], [(1, 4, 1, 0), (4, 2, 0, 3), (0, 0, 0, 0)], {}
IN_ORDER = [(4, 3, 2, 1)] * 3, RANKED[1], {}

TF_RANKING = [
    ("MRRMetricTest", ([(1, 3, 2), (1, 3, 2)], [(0, 0, 1), (0, 0, 0)], {}), {
        "reciprocal_rank": [1 / 2, 0], "reciprocal_rank@1": [0, 0]}),
    ("MRRMetricTest, topn", (THREE, [(1, 0, 0), (0, 1, 0), (0, 0, 1)], {}), {
        "reciprocal_rank@1": [1, 0, 0], "reciprocal_rank@2": [1, 1 / 2, 0], "reciprocal_rank@6": [1, 1 / 2, 1 / 3]}),
    ("MRRMetricTest, padded", ([(1, 2, 3)], [(0, 1, -1)], {}), {"reciprocal_rank": [1]}),
    ("MRRMetricTest, batch", ([(1, 3, 2), (1, 2, 3)], [(0, 0, 1), (0, 1, 1)], {}), {"reciprocal_rank": [1 / 2, 1]}),
    ("keras test_mean_reciprocal_rank", LISTS, {
        "reciprocal_rank": [1 / 2, 1, 1 / 3], "reciprocal_rank@1": [0, 1, 0], "reciprocal_rank@2": [1 / 2, 1, 0],
        "reciprocal_rank@3": [1 / 2, 1, 1 / 3], "reciprocal_rank@6": [1 / 2, 1, 1 / 3]}),
    ("keras test_mean_reciprocal_rank_with_ragged_inputs", (*RAGGED, {}), {"reciprocal_rank": [1 / 2, 1, 1 / 2]}),
    ("keras test_hits", LISTS, {"hit": [1, 1, 1], "hit@1": [0, 1, 0], "hit@2": [1, 1, 0], "hit@3": [1, 1, 1]}),
    ("keras test_hits_with_ragged_inputs", LATE, {"hit@1": [0, 1, 0], "hit@2": [1, 1, 0], "hit@3": [1, 1, 1]}),
    ("ARPMetricTest", (*PAIR, {}), {"arp": [2, (1 * 2 + 2 * 1) / 3]}),
    ("ARPMetricTest, no relevant items", ([(1, 3, 2)], [(0, 0, 0)], {}), {"arp": [0]}),
    ("ARPMetricTest, padded", ([(1, 5, 4, 3, 2)], [(1, -1, 1, -1, 0)], {}), {"arp": [(1 * 1 + 1 * 3) / 2]}),
    ("ARPMetricTest, weights", (*PAIR, WEIGHTS), {"arp": [2, (12 * 1 + 5 * 2) / 17]}),
    ("RecallMetricTest", ([(1, 3, 2), (1, 3, 2)], [(0, 0, 1), (0, 0, 0)], {}), {
        "recall": [1, 0], "recall@1": [0, 0], "recall@2": [1, 0], "recall@6": [1, 0]}),
    ("RecallMetricTest, per list", ([(1, 3, 2), (1, 3, 4)], [(1, 0, 1), (0, 1, 1)], {}), {"recall@2": [1 / 2, 1]}),
    ("keras test_recall", (*PAIR, {}), {"recall": [1, 1], "recall@1": [0, 1 / 2], "recall@2": [1, 1]}),
    ("keras test_recall_with_ragged_inputs", (*RAGGED, {}), {"recall@2": [1, 1, 1 / 2]}),
    ("PrecisionMetricTest", ([(1, 3, 2), (1, 3, 2)], [(0, 0, 1), (0, 0, 0)], {}), {"precision": [1 / 3, 0]}),
    ("PrecisionMetricTest, per list", ([(1, 3, 2, 4), (4, 1, 3, 2)], [(0, 0, 1, 1), (0, 0, 1, 0)], {}), {
        "precision": [2 / 4, 1 / 4]}),
    ("PrecisionMetricTest, topn", (THREE, [(1, 0, 1), (0, 1, 0), (0, 0, 1)], {}), {
        "precision@1": [1, 0, 0], "precision@2": [1 / 2, 1 / 2, 0], "retrieved_precision@6": [2 / 3, 1 / 3, 1 / 3]}),
    ("keras test_precision", (*PAIR, {}), {
        "precision": [1 / 3, 2 / 3], "precision@1": [0, 1], "precision@2": [1 / 2, 1]}),
    ("keras test_precision_with_ragged_inputs", (*RAGGED, {}), {"precision": [1 / 3, 1 / 2, 2 / 4]}),
    ("MeanAveragePrecisionMetricTest", ([(3, 2, 1), (3, 2, 1)], [(0, 1, 0), (0, 0, 0)], {}), {
        "average_precision": [1 / 2, 0]}),
    ("MeanAveragePrecisionMetricTest, graded", ([(3, 4, 1, 2)], [(0, 2, 1, 3)], {}), {
        "average_precision": [(1 + 2 / 3 + 3 / 4) / 3]}),
    ("MeanAveragePrecisionMetricTest, per list", ([(1, 3, 2), (1, 3, 2)], [(0, 0, 1), (0, 1, 1)], {}), {
        "average_precision": [1 / 2, (1 + 1) / 2]}),
    ("MeanAveragePrecisionMetricTest, topn", (THREE, [(1, 0, 2), (0, 1, 0), (0, 0, 1)], {}), {
        "average_precision@1": [1 / 2, 0, 0], "average_precision@2": [1 / 2, 1 / 2, 0],
        "average_precision@6": [(1 + 2 / 3) / 2, 1 / 2, 1 / 3]}),
    ("keras test_mean_average_precision", (*PAIR, {}), {
        "average_precision": [1 / 2, 1], "average_precision@1": [0, 1 / 2], "average_precision@2": [1 / 2, 1]}),
    ("keras test_mean_average_precision_with_weights", (*PAIR, WEIGHTS), {
        "average_precision": [(1 / 2 * 3) / 3, (1 * 6 + 1 * 5) / 11], "average_precision@1": [0, 1 * 6 / 11],
        "average_precision@2": [(1 / 2 * 3) / 3, (1 * 6 + 1 * 5) / 11]}),
    ("keras test_mean_average_precision_with_ragged_inputs", (*RAGGED, {}), {
        "average_precision": [1 / 2, 1, (1 / 2 + 2 / 3) / 2]}),
    ("keras test_mean_average_precision_with_ragged_inputs, weights", (*RAGGED, RAGGED_WEIGHTS), {
        "average_precision": [1 / 2, 1, (2 * 1 / 2 + 4 * 2 / 3) / 6]}),
    ("NDCGMetricTest, DCGMetricTest", ([(3, 2, 1), (3, 2, 1)], [(0, 1, 0), (0, 0, 0)], {}), {
        "ndcg": [D2 / D1, 0], "dcg": [D2, 0]}),
    ("NDCGMetricTest, DCGMetricTest, graded", (*GRADED, {}), {
        "ndcg": [(7 * D2 + D3) / (7 * D1 + D2)], "dcg": [7 * D2 + D3]}),
    ("NDCGMetricTest, DCGMetricTest, custom gain", (*GRADED, {"gain": half}), {
        "ndcg": [(1.5 * D2 + 0.5 * D3) / (1.5 * D1 + 0.5 * D2)], "dcg": [1.5 * D2 + 0.5 * D3]}),
    ("NDCGMetricTest, DCGMetricTest, custom discount", (*GRADED, {"discount": tenths}), {
        "ndcg": [(7 / 12 + 1 / 13) / (7 / 11 + 1 / 12)], "dcg": [7 / 12 + 1 / 13]}),
    ("metrics_test, custom gain and discount", ([(1, 3, 2)], [(0, 0, 1)], {"gain": "linear", "discount": inverse}), {
        "ndcg": [1 / 2], "dcg": [1 / 2]}),
    ("NDCGMetricTest, DCGMetricTest, padded", PADDED, {
        "ndcg": [(3 * D3 + D1) / (3 * D1 + D2)], "dcg": [3 * D3 + D1]}),
    ("NDCGMetricTest, DCGMetricTest, per list", ([(3, 2, 1), (3, 1, 2)], [(0, 1, 0), (1, 1, 0)], {}), {
        "ndcg": [D2 / D1, (D1 + D3) / (D1 + D2)], "dcg": [D2, D1 + D3]}),
    ("NDCGMetricTest, DCGMetricTest, topn", (THREE, [(1, 0, 2), (0, 1, 0), (0, 0, 1)], {}), {
        "ndcg@1": [1 / 3, 0, 0], "ndcg@2": [1 / (3 + D2), D2, 0], "ndcg@6": [(1 + 3 * D3) / (3 + D2), D2, D3],
        "dcg@1": [1, 0, 0], "dcg@2": [1, D2, 0], "dcg@6": [1 + 3 * D3, D2, D3]}),
    ("keras test_normalized_discounted_cumulative_gain_with_weights", (*PAIR, WEIGHTS), {
        "ndcg": [3 * D2 / (3 * D1), 1], "ndcg@1": [0, 1]}),
    ("keras test_normalized_discounted_cumulative_gain_with_ragged_inputs", (*RAGGED, {}), {
        "ndcg": [D2 / D1, 1, (3 * D2 + D3) / (3 * D1 + D2)]}),
    ("keras test_normalized_discounted_cumulative_gain_with_ragged_inputs, weights", (*RAGGED, RAGGED_WEIGHTS), {
        "ndcg": [D2 / D1, 1, (2 * 3 * D2 + 4 * D3) / (2 * 3 * D1 + 4 * D2)]}),
    ("keras test_discounted_cumulative_gain", (*PAIR, {}), {"dcg": [D2, 3 * D1 + D2]}),
    ("keras test_discounted_cumulative_gain, weights", (*PAIR, {"weights": [1, 1, 1, 2, 2, 1]}), {
        "dcg": [D2, 3 * D1 + 2 * D2]}),
    ("keras test_discounted_cumulative_gain_with_ragged_inputs", (*RAGGED, {}), {"dcg": [D2, 3 * D1, 3 * D2 + D3]}),
    ("keras test_discounted_cumulative_gain_with_ragged_inputs, weights", (*RAGGED, RAGGED_WEIGHTS), {
        "dcg": [2 * D2, 3 * D1, 2 * 3 * D2 + 4 * D3]}),
    ("OPAMetricTest", ([(3, 2, 1), (3, 2, 1)], [(0, 1, 0), (0, 0, 0)], {}), {"opa": [1 / 2, 0]}),
    ("OPAMetricTest, graded", ([(4, 3, 2, 1)], [(1, 3, 0, 1)], {}), {"opa": [3 / 5]}),
    ("OPAMetricTest, padded", ([(4, 1, 2, 3)], [(2, -1, 1, 0)], {}), {"opa": [2 / 3]}),
    ("OPAMetricTest, per list", ([(3, 2, 1), (3, 1, 2)], [(0, 1, 0), (1, 0, 1)], {}), {"opa": [1 / 2, 2 / 2]}),
    ("OPAMetricTest, weights per pair", ([(1, 3, 2)], [(1, 0, 2)], {"weights": [3, 7, 9]}), {"opa": [9 / (3 + 9 + 9)]}),
    ("keras test_ordered_pair_accuracy", (PAIR[0], [(-1, 0, 1), (0, 1, 2)], {}), {"opa": [0, 1]}),
    ("keras test_ordered_pair_accuracy_with_ragged_inputs", (*RAGGED, {}), {"opa": [1 / 2, 1 / 1, 3 / 5]}),
    ("keras test_ordered_pair_accuracy_with_ragged_inputs, weights", (*RAGGED, RAGGED_WEIGHTS), {
        "opa": [2 / 4, 1 / 1, 8 / 14]}),
    ("losses_impl test_ndcg", IN_ORDER, {"ndcg": [0.679685, 0.95176, 0]}),
    ("losses_impl test_ndcg, ranks", RANKED, {"ndcg": [0.679685, 1, 0]}),
    ("losses_impl test_inverse_max_dcg", (RANKED[1][:2], RANKED[1][:2], {}), {
        "dcg": [log(2) / 0.04297, log(2) / 0.033139], "dcg@1": [log(2) / 0.04621, log(2) / 0.04621]}),
]  # fmt: skip

SLATES = [(0.2, 0.5), (0.5, 0.2)], [(0, 1), (0, 1)], {}
ALLRANK = [
    ("test_mrr_simple, test_ndcg_simple", ([(0.5, 0.2), (0.5, 0.2)], [(1, 0), (0, 1)], {}), {
        "reciprocal_rank": [1, 1 / 2], "reciprocal_rank@10": [1, 1 / 2], "ndcg": [1, 1 / log2(3)]}),
    ("test_mrr_multiple_slates_multiple_ats", SLATES, {
        "reciprocal_rank@10": [1, 1 / 2], "reciprocal_rank@1": [1, 0], "reciprocal_rank@2": [1, 1 / 2]}),
    ("zero_when_no_relevant", ([(0.5, 0.2)], [(0, 0)], {}), {"reciprocal_rank@10": [0], "ndcg": [0]}),
    ("with_padded_input", ([(0.5, 0.2, 1.0), (0.5, 0.2, 1.0)], [(1, 0, -1), (0, 1, -1)], {}), {
        "reciprocal_rank@10": [1, 1 / 2], "ndcg": [1, 1 / log2(3)]}),
    ("test_ndcg_for_multiple_ats", ([(0.5, 0.2, 0.1)], [(1, 0, 1)], {}), {
        "ndcg@1": [1], "ndcg@2": [1 / (1 + 1 / log2(3))]}),
]  # fmt: skip

ROUNDED = {"losses_impl": 2e-4, "doctest": 1e-6}  # where their values are typed with few digits
CASES = [
    (f"{peer}, {source}, {name}", name, given, expected, ROUNDED.get(source.split()[0], 1e-9))
    for peer, table in (("rax", RAX), ("TF-Ranking", TF_RANKING), ("allRank", ALLRANK))
    for source, given, measures in table
    for name, expected in measures.items()
]


def flat(rows, labels):
    """The entries whose label is not -1, one after another, and where the lists begin and end."""
    width = max(map(len, labels))
    inside = torch.tensor([[*(label >= 0 for label in row), *[False] * (width - len(row))] for row in labels])
    padded = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)
    return F.unpad(padded, inside)


def values(name, rows, labels, options):
    name, _, k = name.partition("@")
    function = {"retrieved_precision": retrieved_precision}.get(name) or getattr(F, name)
    given = {"k": int(k)} if k else {}
    if "empty" in inspect.signature(function).parameters:
        given["empty"] = 0
    scores, offsets = flat(rows, labels)
    found = function(scores, flat(labels, labels)[0], offsets, **given | options)
    return found if "empty" in given else found.nan_to_num()


@pytest.mark.parametrize(
    ("name", "given", "expected", "rtol"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_values_of_their_tests(name, given, expected, rtol):
    np.testing.assert_allclose(values(name, *given), expected, rtol=rtol, atol=1e-12)


# TF-Ranking's metrics are means over lists, each weighted by the mean weight of its relevant items (of their gains, for
# NDCG): their `weights` of items are `list_weights` here, and where `output_weights` are tested these are the numbers.
MEANS = [
    ("test_mean_reciprocal_rank", "reciprocal_rank", LISTS, [3, 5.5, 8], (3 / 2 + 5.5 + 8 / 3) / 16.5),
    ("test_mean_reciprocal_rank", "reciprocal_rank@1", LISTS, [3, 5.5, 8], 5.5 / 16.5),
    ("test_mean_reciprocal_rank_with_ragged_inputs", "reciprocal_rank", (*RAGGED, {}), [2, 1, 3], (1 + 1 + 1.5) / 6),
    ("test_hits", "hit@1", LISTS, [3, 5.5, 8], 5.5 / 16.5),
    ("test_hits_with_ragged_inputs", "hit@1", LATE, [2, 1, 3], 1 / 6),
    ("test_hits_with_ragged_inputs", "hit@2", LATE, [2, 1, 3], (2 + 1) / 6),
    ("test_hits_with_ragged_inputs", "hit@3", LATE, [2, 1, 3], 1),
    ("test_precision_with_weights", "precision", (*PAIR, {}), [3, 5.5], (1 / 3 * 3 + 2 / 3 * 5.5) / 8.5),
    ("test_precision_with_weights", "precision@2", (*PAIR, {}), [3, 5.5], (1 / 2 * 3 + 1 * 5.5) / 8.5),
    ("test_precision_with_weights, per list", "precision", (*PAIR, {}), [1, 2], (1 / 3 + 2 / 3 * 2) / 3),
    ("test_precision_with_ragged_inputs", "precision", (*RAGGED, {}), [2, 1, 3], (2 / 3 + 1 / 2 + 3 * 2 / 4) / 6),
    ("test_mean_average_precision_with_weights", "average_precision@1", (*PAIR, WEIGHTS), [3, 5.5], 6 / 11 * 5.5 / 8.5),
    ("test_mean_average_precision_with_weights, per list", "average_precision", (*PAIR, {}), [1, 2], (1 / 2 + 2) / 3),
    ("test_mean_average_precision_with_ragged_inputs", "average_precision", (*RAGGED, RAGGED_WEIGHTS), [2, 1, 3],
     (2 / 2 + 1 + 3 * (2 / 2 + 2 * 4 / 3) / 6) / 6),
    ("test_recall_with_ragged_inputs", "recall@2", (*RAGGED, {}), [2, 1, 3], (2 + 1 + 3 / 2) / 6),
    ("test_normalized_discounted_cumulative_gain_with_weights", "ndcg", (*PAIR, WEIGHTS), [3, 5.75],
     (D2 * 3 + 5.75) / 8.75),
    ("test_normalized_discounted_cumulative_gain_with_weights", "ndcg@1", (*PAIR, WEIGHTS), [3, 5.75], 5.75 / 8.75),
    ("test_normalized_discounted_cumulative_gain_with_weights, per list", "ndcg", (*PAIR, {}), [1, 2], (D2 + 2) / 3),
    ("test_normalized_discounted_cumulative_gain_with_ragged_inputs", "ndcg", (*RAGGED, RAGGED_WEIGHTS), [2, 1, 2.5],
     (2 * D2 + 1 + 2.5 * (6 * D2 + 4 * D3) / (6 + 4 * D2)) / 5.5),
    ("test_average_relevance_position", "arp", (*PAIR, {}), [1, 3], (1 * 2 + 2 * 1 + 1 * 2) / 4),
    ("test_average_relevance_position, weights", "arp", (*PAIR, WEIGHTS), [3, 17], (3 * 2 + 12 * 1 + 5 * 2) / 20),
    ("test_ordered_pair_accuracy", "opa", (PAIR[0], [(-1, 0, 1), (0, 1, 2)], {}), [1, 3], 3 / 4),
    ("test_ordered_pair_accuracy, weights", "opa", (PAIR[0], [(-1, 0, 1), (0, 1, 2)], {}), [1, 3 * 2], 6 / 7),
    ("test_ordered_pair_accuracy_with_ragged_inputs", "opa", (*RAGGED, {}), [2, 1, 5], (1 + 1 + 3) / 8),
    ("test_ordered_pair_accuracy_with_ragged_inputs, weights", "opa", (*RAGGED, RAGGED_WEIGHTS), [4, 1, 14],
     (2 + 1 + 8) / 19),
    # lists without a relevant item have the mean weight of the others
    ("test_precision_weights_with_zero_relevance", "precision@2",
     ([(1, 3, 2), (1, 3, 2), (1, 2, 3)], [(0, 0, 0), (0, 0, 1), (0, 1, 2)], {}), [4.25, 3, 5.5],
     (1 / 2 * 3 + 1 * 5.5) / 12.75),
    ("test_recall_weights_with_zero_relevance", "recall@1",
     ([(1, 3, 2), (1, 3, 2), (1, 2, 3)], [(0, 0, 0), (0, 0, 1), (0, 1, 2)], {}), [4.25, 3, 5.5], 1 / 2 * 5.5 / 12.75),
    ("test_normalized_discounted_cumulative_gain_with_weights_zero_relevance", "ndcg",
     (PAIR[0], [(0, 0, 0), (0, 1, 2)], WEIGHTS), [5.75, 5.75], 5.75 / 11.5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "weights", "expected"), [case[1:] for case in MEANS], ids=[case[0] for case in MEANS]
)
def test_weighted_means_of_tf_ranking(name, given, weights, expected):
    """keras/metrics_test.py."""
    rows, labels, options = given
    found = values(name, rows, labels, options | {"list_weights": weights})
    assert found.sum().item() / sum(weights) == pytest.approx(expected)


def test_precision_of_lists_shorter_than_the_cutoff():
    """PrecisionMetricTest, test_precision_should_handle_topn: theirs divides by 3, the length of the lists."""
    found = values("precision@6", THREE, [(1, 0, 1), (0, 1, 0), (0, 0, 1)], {})
    assert found.tolist() == pytest.approx([2 / 6, 1 / 6, 1 / 6])


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (None, {"mrr": [1, 1 / 3, 1 / 2, 1], "map": [1, 1 / 3, 1 / 2, 1]}),
        (None, {"dcg": [3, D3, D2, 3], "ndcg": [1, D3, D2, 1]}),
        (1, {"p": [1, 0, 0, 1], "recall": [1, 0, 0, 1]}),
        (2, {"mrr": [1, 0, 1 / 2, 1], "recall": [1, 0, 1, 1], "dcg": [3, 0, D2, 3], "ndcg": [1, 0, D2, 1]}),
    ],
)
def test_segments_in_any_order(k, expected):
    """rax: test_computes_metric_with_segments, test_computes_metric_with_segments_and_cutoff."""
    expected = {f"{name}@{k}" if k else name: lists for name, lists in expected.items()}
    metrics = RankingMetrics(list(expected))
    metrics.update(
        torch.tensor([0.0, 1, 2, 3, 4, 7, 5, 6]),
        torch.tensor([0, 1, 2, 0, 0, 0, 2, 1]),
        indexes=torch.tensor([0, 1, 0, 1, 1, 2, 4, 2]),
    )
    found = {name: value.item() for name, value in metrics.compute().items()}
    assert found == pytest.approx({name: sum(lists) / 4 for name, lists in expected.items()})
