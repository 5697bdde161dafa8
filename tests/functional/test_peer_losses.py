"""Losses against the expected values of other libraries' own tests, with the test that each value comes from.

rax: google/rax, rax/_src/losses_test.py (values per list, `reduce_fn=jnp.sum`). TF-Ranking: tensorflow/ranking,
tensorflow_ranking/python/losses_impl_test.py if no other file is named; its means over lists, items or pairs are
written as the sum that they divide. allRank: allegro/allRank, tests/losses and tests. Entries of label -1 are padded
or masked there, and left out here.
"""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from torchrank import functional as F
from torchrank.functional import LOSSES
from torchrank.functional.ragged import (
    per_entry,
    positions_within,
    ranks,
    segment_logsumexp,
    segment_max,
    segment_sum,
)


def sigmoid(value):
    return 1 / (1 + exp(-value))


def logistic(gap):
    return log(1 + exp(-gap))


def share(value, *values):
    return exp(value) / sum(map(exp, values))


def entropies(relevant, others):
    """Sigmoid cross entropy of the scores of relevant entries and of others."""
    return -sum(log(sigmoid(s)) for s in relevant) - sum(log(1 - sigmoid(s)) for s in others)


def listmle(*ranked):
    return -sum(log(share(ranked[r], *ranked[r:])) for r in range(len(ranked)))


ALL = (0.0, 3.0, 1.0, 2.0)
VALUE = [ALL], [(0, 0, 1, 1)]
EXTREME = [(0.0, -2.1e26, 3.4e37, 42.0)], [(0, 1, 1, 0)]
ZERO = [ALL], [(0, 0, 0, 0)]
WEIGHTED = [(0.0, 3.0, 2.0, 1.0)], [(0, 0, 1, 1)], {"weights": [1.0, 1.0, 2.0, 1.0]}
MORE = (3.0, 1.0, 4.0, 2.0)
TWO = [ALL, MORE], [(0, 0, 1, 1), (2, 0, 1, 0)]
REDUCED = [(2.0, 1.0, 3.0), (1.0, 0.5, 1.5)], [(1, 0, 0), (0, 0, 1)]
SOFTMAX = -log(share(2, *ALL)) - log(share(1, *ALL))
UNIQUE = -log(share(2, 0, 3, 2)) - log(share(1, 0, 3, 1))
HITS = 0.5 * share(2, *ALL) + 0.5 * share(1, *ALL)
FIRST, SECOND = share(2, 2, 1, 3), share(1.5, 1, 0.5, 1.5)
PAIRS = logistic(1) + logistic(1 - 3) + logistic(2 - 3) + logistic(2)
WRONG = sigmoid(-1) + sigmoid(3 - 1) + sigmoid(3 - 2) + sigmoid(-2)
ALL_PAIRS = 9 + 0 + 1 + 9 + 9 + 4 + 0 + 9 + 1 + 1 + 4 + 1

RAX = [
    ("test_computes_loss_value", VALUE, {
        "softmax": [SOFTMAX], "listmle": [listmle(1, 2, 0, 3)], "poly1_softmax": [SOFTMAX + 1 - HITS],
        "unique_softmax": [UNIQUE], "hinge": [3 - 1 + 1 + 3 - 2 + 1], "logistic": [PAIRS], "soft_zero_one": [WRONG],
        "bce": [entropies([1, 2], [0, 3])], "mse": [0 + 9 + 0 + 1], "pairwise_mse": [ALL_PAIRS],
    }),
    ("test_computes_loss_value, epsilon", (*VALUE, {"epsilon": 0.1}), {"poly1_softmax": [SOFTMAX + 0.1 * (1 - HITS)]}),
    ("test_computes_loss_with_extreme_inputs", EXTREME, {
        "softmax": [3.4e37 + 2.1e26], "listmle": [3.4e37], "poly1_softmax": [3.4e37 + 2.1e26],
        "unique_softmax": [2.1e26 + 42], "hinge": [2.1e26 + 2.1e26], "logistic": [2.1e26 + 2.1e26],
        "soft_zero_one": [2.0], "bce": [2.1e26 - log(0.5) + 42], "mse": [2.1e26**2 + 3.4e37**2],
        "pairwise_mse": [6 * 3.4e37**2],
    }),
    ("test_computes_loss_for_zero_labels", ZERO, {
        "softmax": [0.0], "listmle": [listmle(*ALL)], "poly1_softmax": [0.75], "unique_softmax": [0.0],
        "hinge": [0.0], "logistic": [0.0], "soft_zero_one": [0.0], "bce": [entropies([], ALL)], "mse": [14.0],
        "pairwise_mse": [2 * (9 + 1 + 4 + 4 + 1 + 1)],
    }),
    ("test_computes_weighted_loss_value", WEIGHTED, {
        "softmax": [-2 * log(share(2, *ALL)) - log(share(1, *ALL))],
        "poly1_softmax": [
            -2 * log(share(2, *ALL)) - log(share(1, *ALL)) + 1 - 2 / 3 * share(2, *ALL) - 1 / 3 * share(1, *ALL)
        ],
        "unique_softmax": [-2 * log(share(2, 0, 3, 2)) - log(share(1, 0, 3, 1))],
        "hinge": [7.0], "logistic": [5.320569], "soft_zero_one": [2.850261],
        "bce": [entropies([2, 2, 1], [0, 3])], "mse": [9 + 2 * 1],
        "pairwise_mse": [(9 + 1 + 0) + (9 + 4 + 9) + 2 * (1 + 4 + 1) + (0 + 9 + 1)],
    }),
    ("test_computes_loss_value_with_vmap", TWO, {
        "softmax": [SOFTMAX, -2 * log(share(3, *MORE)) - log(share(4, *MORE))],
        "listmle": [listmle(1, 2, 0, 3), listmle(3, 4, 1, 2)],
        "poly1_softmax": [
            SOFTMAX + 1 - HITS,
            -2 * log(share(3, *MORE)) - log(share(4, *MORE)) + 1 - 2 / 3 * share(3, *MORE) - 1 / 3 * share(4, *MORE),
        ],
        "unique_softmax": [UNIQUE, -3 * log(share(3, *MORE)) - log(share(4, 1, 4, 2))],
        "hinge": [5.0, 2.0],
        "logistic": [PAIRS, logistic(2) + logistic(3 - 4) + logistic(1) + logistic(3) + logistic(2)],
        "bce": [entropies([1, 2], [0, 3]), entropies([3, 4], [1, 2])], "mse": [10.0, 1 + 1 + 9 + 4],
        "pairwise_mse": [ALL_PAIRS, 0 + 4 + 1 + 0 + 4 + 1 + 4 + 4 + 1 + 1 + 1 + 1],
    }),
    ("test_computes_reduced_loss", REDUCED, {
        "softmax": [-log(FIRST), -log(SECOND)], "listmle": [listmle(2, 1, 3), listmle(1.5, 1, 0.5)],
        "poly1_softmax": [-log(FIRST) + 1 - FIRST, -log(SECOND) + 1 - SECOND],
        "unique_softmax": [-log(FIRST), -log(SECOND)], "hinge": [2.0, 0.5],
        "logistic": [logistic(1) + logistic(-1), logistic(0.5) + logistic(1)],
        "soft_zero_one": [sigmoid(-1) + sigmoid(1), sigmoid(-0.5) + sigmoid(-1)],
        "bce": [entropies([2], [1, 3]), entropies([1.5], [1, 0.5])], "mse": [1 + 1 + 9, 1 + 0.25 + 0.25],
        "pairwise_mse": [0 + 4 + 0 + 4 + 4 + 4, 0.25 + 0.25 + 0.25 + 0 + 0.25 + 0],
    }),
    ("doctest of losses.py", ([(2.0, 1.0, 0.0), (1.0, 0.5, 1.5)], [(1, 0, -1), (0, 0, 1)]), {"hinge": [0.0, 0.5]}),
]  # fmt: skip

LISTS = [(1.0, 3.0, 2.0), (1.0, 2.0, 3.0)]
GRADES = [(0, 0, 1), (0, 0, 2)]
THIRD = share(2, 1, 3, 2)
LAST = share(3, 1, 2, 3)
ORDERED = [(0.0, log(3), log(2)), (0.0, log(2), log(3))], [(0, 2, 1), (1, 0, 2)]
NEAR = [(0.2, 0.5, 0.3), (0.2, 0.3, 0.5)], [(0, 0, 1), (0, 0, 2)]
MLE = [-log(3 / 6) - log(2 / 3), -log(3 / 6) - log(1 / 3)]
INVALID = [(1.0, 3.0, 2.0)], [(0, -1, 1)]
MASKED = LISTS, [(1, -1, 0), (0, 0, 2)]
RAGGED = [(1.0, 3.0, 2.0), (1.0, 3.0)], [(0, 0, 1), (0, 2)]
UNLIKE = [(3.0, 1.0, 2.0), (3.0, 2.0)], [(0, 0, 1), (0, 2)]
CUBE = [[(1, 2), (3, 2), (2, 3)], [(1, 3), (2, 2), (3, 2)], [(1, 1), (2, 1), (3, 3)]]
SOFT = [(1.4, -2.8, -0.4), (0.0, 1.8, 10.2), (1.0, 1.2, -3.2)], [(0, 2, 1), (1, 0, 3), (0, 0, 0)]
WORST = (3 / log(4) + 1 / log(3)) / (3 / log(2) + 1 / log(3))
SECOND_BEST = (7 / log(2) + 1 / log(4)) / (7 / log(2) + 1 / log(3))
D1, D2, D3 = (log(2) / log(1 + rank) for rank in (1, 2, 3))
TF_RANKING = [
    ("PairwiseLogisticLossTest", (LISTS, GRADES), {
        "logistic": [logistic(2 - 3) + logistic(2 - 1), logistic(3 - 1) + logistic(3 - 2)]}),
    ("PairwiseLogisticLossTest, per_list_weights", (LISTS, GRADES, {"list_weights": [1.0, 2.0]}), {
        "logistic": [logistic(2 - 3) + logistic(2 - 1), 2 * (logistic(3 - 1) + logistic(3 - 2))]}),
    ("PairwiseLogisticLossTest, per_example_weights", (LISTS, GRADES, {"weights": [1, 1, 2, 1, 1, 1]}), {
        "logistic": [2 * (logistic(2 - 3) + logistic(2 - 1)), logistic(3 - 1) + logistic(3 - 2)]}),
    ("PairwiseHingeLossTest", (LISTS, GRADES), {"hinge": [2.0, 0.0]}),
    ("PairwiseHingeLossTest, per_list_weights", (LISTS, GRADES, {"list_weights": [1.0, 2.0]}), {"hinge": [2.0, 0.0]}),
    ("PairwiseHingeLossTest, per_example_weights", (LISTS, GRADES, {"weights": [1, 1, 2, 1, 1, 1]}), {
        "hinge": [4.0, 0.0]}),
    ("test_pairwise_compute_per_list", (LISTS, GRADES, {"weights": [2, 3, 4, 1, 1, 1]}), {"hinge": [1.0 * 8, 0.0 * 2]}),
    ("test_pointwise_compute_per_list", (LISTS[:1], GRADES[:1], {"weights": [2, 3, 4]}), {"bce": [1.3644443 * 9]}),
    ("SoftmaxLossTest", (LISTS, GRADES), {"softmax": [-log(THIRD), -2 * log(LAST)]}),
    ("SoftmaxLossTest, zero labels", ([(1.0, 2.0, 3.0)], [(0, 0, 0)]), {"softmax": [0.0]}),
    ("SoftmaxLossTest, per_example_weights", (LISTS, GRADES, {"weights": [1, 1, 1, 1, 1, 3]}), {
        "softmax": [-log(THIRD), -2 * 3 * log(LAST)]}),
    ("SoftmaxLossTest, per_list_weights", (LISTS, GRADES, {"list_weights": [2, 1]}), {
        "softmax": [-2 * log(THIRD), -2 * log(LAST)]}),
    ("test_softmax_compute_per_list", (LISTS, GRADES, {"weights": [2, 3, 4, 1, 1, 1]}), {
        "softmax": [1.407606 * 4, 0.407606 * 2]}),
    ("SoftmaxLossTest, invalid labels", ([(1.0, 2.0)], [(0, 1)]), {"softmax": [-log(share(2, 1, 2))]}),
    ("UniqueSoftmaxLossTest", (LISTS, [(0, 0, 1), (0, 1, 2)]), {
        "unique_softmax": [-log(THIRD), -log(share(2, 1, 2)) - 3 * log(LAST)]}),
    ("UniqueSoftmaxLossTest, weights", (LISTS, [(0, 0, 1), (0, 1, 2)], {"list_weights": [2, 1]}), {
        "unique_softmax": [-2 * log(THIRD), -log(share(2, 1, 2)) - 3 * log(LAST)]}),
    ("test_unique_softmax_compute_per_list", (LISTS, GRADES, {"weights": [2, 3, 4, 1, 1, 1]}), {
        "unique_softmax": [1.407606 * 4, 1.222818]}),
    ("ListMLELossTest", ORDERED, {"listmle": MLE}),
    ("ListMLELossTest, weights", (*ORDERED, {"list_weights": [2, 1]}), {"listmle": [2 * MLE[0], MLE[1]]}),
    ("ListMLELossTest, tie", ([(log(2), 0.0, log(3))], [(0, 0, 1)]), {"listmle": [-log(3 / 6) - log(2 / 3)]}),
    ("ListMLELossTest, lambda_weight", (*ORDERED, {"discount": lambda ranks: 2.0 ** (3 - ranks) - 1}), {
        "listmle": [-3 * log(3 / 6) - log(2 / 3), -3 * log(3 / 6) - log(1 / 3)]}),
    ("MeanSquaredLossTest", NEAR, {"mse": [0.04 + 0.25 + 0.49, 0.04 + 0.09 + 2.25]}),
    ("MeanSquaredLossTest, weights", (*NEAR, {"list_weights": [2, 1]}), {
        "mse": [2 * (0.04 + 0.25 + 0.49), 0.04 + 0.09 + 2.25]}),
    ("MeanSquaredLossTest, invalid labels", ([(1.0, 2.0)], [(0, 1)]), {"mse": [2.0]}),
    ("SigmoidCrossEntropyLossTest", (NEAR[0][:1], NEAR[1][:1]), {"bce": [entropies([0.3], [0.2, 0.5])]}),
    ("SigmoidCrossEntropyLossTest, invalid labels", ([(1.0, 2.0)], [(0, 1)]), {
        "bce": [log(1 + exp(-2)) + log(1 + exp(1))]}),
    ("PairwiseSoftZeroOneLossTest", (LISTS, GRADES), {
        "soft_zero_one": [sigmoid(3 - 2) + sigmoid(1 - 2), sigmoid(1 - 3) + sigmoid(2 - 3)]}),
    ("PairwiseSoftZeroOneLossTest, per_list_weights", (LISTS, GRADES, {"list_weights": [1.0, 2.0]}), {
        "soft_zero_one": [sigmoid(3 - 2) + sigmoid(1 - 2), 2 * (sigmoid(1 - 3) + sigmoid(2 - 3))]}),
    ("PairwiseSoftZeroOneLossTest, per_example_weights", (LISTS, GRADES, {"weights": [1, 1, 2, 1, 1, 1]}), {
        "soft_zero_one": [2 * (sigmoid(3 - 2) + sigmoid(1 - 2)), sigmoid(1 - 3) + sigmoid(2 - 3)]}),
    ("PairwiseMSELossTest", (LISTS, GRADES), {"pairwise_mse": [2 * (4 + 0 + 4), 2 * (1 + 0 + 1)]}),
    ("PairwiseMSELossTest, per_list_weights", (LISTS, GRADES, {"list_weights": [1.0, 2.0]}), {
        "pairwise_mse": [2 * (4 + 0 + 4), 2 * 2 * (1 + 0 + 1)]}),
    ("PairwiseMSELossTest, per_example_weights", (LISTS, GRADES, {"weights": [1, 1, 2, 1, 1, 1]}), {
        "pairwise_mse": [3 * 4 + 3 * 0 + 2 * 4, 2 * (1 + 0 + 1)]}),
    ("invalid labels", INVALID, {
        "logistic": [logistic(2 - 1)], "hinge": [0.0], "soft_zero_one": [sigmoid(1 - 2)], "pairwise_mse": [0.0],
        "softmax": [-log(share(2, 1, 2))], "unique_softmax": [-log(share(2, 1, 2))], "mse": [1.0 + 1.0],
        "bce": [log(1 + exp(-2)) + log(1 + exp(1))]}),
    ("mask", MASKED, {
        "logistic": [logistic(1 - 2), logistic(3 - 1) + logistic(3 - 2)], "hinge": [2.0, 0.0],
        "soft_zero_one": [sigmoid(2 - 1), sigmoid(1 - 3) + sigmoid(2 - 3)],
        "pairwise_mse": [2 * ((2 - 1) - (0 - 1)) ** 2, 2 * (1 + 0 + 1)]}),
    ("mask", ([(1.0, 2.0, 3.0)], [(0, -1, 1)]), {"softmax": [-log(share(3, 1, 3))]}),
    ("mask", ([(1.0, 2.0, 3.0, 2.0)], [(0, -1, 1, 0)]), {"unique_softmax": [-log(share(3, 1, 3, 2))]}),
    ("mask", ([(0.0, log(2), log(3))], [(0, -1, 1)]), {"listmle": [-log(3 / 4)]}),
    ("padded labels when labels are zero, fully padded labels", ([(0.0, 0.0)] * 2, [(0, -1), (-1, -1)]), {
        "softmax": [0.0, 0.0]}),
    ("test_compute_per_list_with_ragged_tensors", (*RAGGED, {"weights": [2, 3, 4, 1, 1]}), {
        "mse": [3.6666667 * 9, 1.0 * 2], "hinge": [1.0 * 8, 0.0], "logistic": [0.813262 * 8, 0.126928],
        "soft_zero_one": [0.5 * 8, 0.119203], "softmax": [1.407606 * 4, 0.126928 * 2],
        "unique_softmax": [1.407606 * 4, 0.380784]}),
    ("test_compute_per_list_with_ragged_tensors", RAGGED, {
        "listmle": [3.534534, 0.126928], "approx_ndcg": [-0.63093, -0.922917], "approx_mrr": [-0.5, -0.893493]}),
    ("test_compute_unreduced_loss_with_ragged_tensors", ([(3.0, 1.0, 2.0), (1.0, 3.0)], RAGGED[1]), {
        "listmle": [1.534534, 0.126928]}),  # the tie of labels in the other order
    ("test_listwise_compute_per_list", (LISTS, GRADES), {"approx_ndcg": [-0.63093, -0.796248]}),
    ("keras test_loss_with_ragged_tensors, sums", UNLIKE, {
        "hinge": 4.0, "logistic": 2.9397852, "soft_zero_one": 1.7310586, "softmax": 4.034129,
        "unique_softmax": 5.347391, "mse": 20.0, "listmle": 2.8477957}),
    ("keras test_loss_with_ragged_tensors, sums", (*UNLIKE, {"temperature": 0.1}), {
        "approx_ndcg": -1.2618682, "approx_mrr": -1.0000114}),
    ("SoftmaxLossTest, per_example_weights", (
        [*LISTS, (1.0, 2.0, 3.0)], [(0, 0, 1), (1, 1, 2), (0, 0, 0)], {"weights": [1, 1, 1, 1, 2, 3, 1, 0, 1]}), {
        "softmax": [-log(THIRD), -log(share(1, 1, 2, 3)) - 2 * log(share(2, 1, 2, 3)) - 2 * 3 * log(LAST), 0.0]}),
    ("SoftmaxLossTest, per_list_weights", (
        [*LISTS, (1.0, 2.0, 3.0)], [(1, 2, 1), (0, 0, 2), (0, 0, 0)], {"list_weights": [2, 1, 1]}), {
        "softmax": [-2 * (log(share(1, 1, 3, 2)) + 2 * log(share(3, 1, 3, 2)) + log(THIRD)), -2 * log(LAST), 0.0]}),
    ("SoftmaxLossTest, lambda_weights", (LISTS, GRADES, {"weights": [1, 1, 1 / log(3), 1, 1, 1 / log(2)]}), {
        "softmax": [-log(THIRD) / log(1 + 2), -2 * log(LAST) / log(1 + 1)]}),  # the discounts of the current ranks
    # the polynomial term is that of rax: TF-Ranking multiplies it by the sum of the labels, which are weights here
    ("PolyOneSoftmaxLossTest", (LISTS, [(0, 0, 1)] * 2, {"epsilon": 3.0, "list_weights": [1, 2]}), {
        "poly1_softmax": [-log(THIRD) + 3 * (1 - THIRD), -2 * (log(LAST) - 3 * (1 - LAST))]}),
    ("losses_test test_make_poly_one_softmax_loss_fn", (LISTS, [(0, 0, 1)] * 2, {"list_weights": [2, 2 * 1]}), {
        "poly1_softmax": [-2 * (log(THIRD) - 1 + THIRD), -2 * (log(LAST) - 1 + LAST)]}),
    ("MeanSquaredLossTest, SigmoidCrossEntropyLossTest, zero labels", ([NEAR[0][1]], [(0, 0, 0)]), {
        "mse": [0.04 + 0.09 + 0.25], "bce": [entropies([], [0.2, 0.3, 0.5])]}),
    ("losses_test test_make_mean_squared_loss_fn, test_make_sigmoid_cross_entropy_loss_fn", (
        NEAR[0], [(0, 0, 1)] * 2, {"list_weights": [2, 1]}), {
        "mse": [2 * (0.04 + 0.25 + 0.49), 0.04 + 0.09 + 0.25],
        "bce": [2 * entropies([0.3], [0.2, 0.5]), entropies([0.5], [0.2, 0.3])]}),
    ("OrdinalLossTest", (CUBE, [(0, 0, 1), (0, 1, 2), (0, 0, 0)]), {"ordinal": [
        entropies([2], [1, 3]) + entropies([], [2, 2, 3]), entropies([2, 3], [1]) + entropies([2], [3, 2]),
        entropies([], [1, 2, 3]) + entropies([], [1, 1, 3])]}),
    ("OrdinalLossTest, weights", (CUBE, [(0, 0, 1), (0, 1, 2), (0, 0, 0)], {"list_weights": [2, 1, 1]}), {"ordinal": [
        2 * entropies([2], [1, 3]) + 2 * entropies([], [2, 2, 3]), entropies([2, 3], [1]) + entropies([2], [3, 2]),
        entropies([], [1, 2, 3]) + entropies([], [1, 1, 3])]}),
    ("OrdinalLossTest, fraction label", (CUBE, [(0, 0.5, 1.2), (0, 0.8, 2), (0, 0, 0.1)]), {"ordinal": [
        entropies([2], [1, 3]) + entropies([], [2, 2, 3]), entropies([3], [1, 2]) + entropies([2], [3, 2]),
        entropies([], [1, 2, 3]) + entropies([], [1, 1, 3])]}),
    ("OrdinalLossTest, invalid labels", ([[(1, 1), (3, 3), (2, 2)]], [(0, -1, 1)]), {
        "ordinal": [entropies([2], [1]) + entropies([], [1, 2])]}),
    ("keras test_ordinal_loss_with_invalid_labels", ([[(1, 0), (3, -100), (2, 3)]], [(0, -1, 1)]), {
        "ordinal": [entropies([2], [1]) + entropies([], [0, 3])]}),
    ("OrdinalLossTest, mask", ([[(1, 1), (2, 2), (3, 3), (2, 2)]], [(0, -1, 1, 0)]), {
        "ordinal": [entropies([3], [1, 2]) + entropies([], [1, 3, 2])]}),
    ("ApproxNDCGLossTest, ApproxMRRLossTest, mask", ([(1.0, 3.0, 2.0)], [(0, -1, 1)]), {
        "approx_ndcg": [-log(2) / log(2 + sigmoid(1 - 2))], "approx_mrr": [-1 / (1 + sigmoid(1 - 2))]}),
    ("keras test_approx_ndcg_loss", (*SOFT, {"temperature": 0.1}), {"approx_ndcg": [-WORST, -SECOND_BEST, 0.0]}),
    ("keras test_approx_ndcg_loss, weights", (*SOFT, {"temperature": 0.1, "list_weights": [2, 1, 1]}), {
        "approx_ndcg": [-2 * WORST, -SECOND_BEST, 0.0]}),
    ("losses_test test_make_neural_sort_ndcg_fn", (*SOFT, {"temperature": 0.1}), {
        "neural_ndcg": [-WORST, -SECOND_BEST, 0.0]}),
    ("losses_test test_make_neural_sort_ndcg_fn, weights", (*SOFT, {"temperature": 0.1, "list_weights": [2, 1, 1]}), {
        "neural_ndcg": [-2 * WORST, -SECOND_BEST, 0.0]}),
    ("NeuralSortNDCGLossTest, invalid labels, mask", (
        [(1.0, 3.0, 2.0), (2.0, 4.0, 3.0, -5.0, 1000.0)], [(0, -1, 1), (0, -1, 1, -1, -1)], {"temperature": 0.1}), {
        "neural_ndcg": [-1.0, -1.0]}),
    # DCGLambdaWeight(1 / log1p(rank), smooth_fraction=1): theirs is that times the label, the length and 1 / log(2)
    ("keras _check_pairwise_loss, lambda_weight", (LISTS, GRADES, {"pair": "hinge", "list_weights": [2, 1]}), {
        "lambdarank": [2 * (D1 - D2) * 2, 0.0]}),
    ("keras _check_pairwise_loss, lambda_weight", (LISTS, GRADES, {"list_weights": [2, 1]}), {
        "lambdarank": [2 * ((D1 - D2) * logistic(-1) + (D2 - D3) * logistic(1)),
                       (D1 - D2) * logistic(1) + (D1 - D3) * logistic(2)]}),
    ("keras _check_pairwise_loss, lambda_weight", (LISTS, GRADES, {"pair": "soft_zero_one", "list_weights": [2, 1]}), {
        "lambdarank": [2 * ((D1 - D2) * sigmoid(1) + (D2 - D3) * sigmoid(-1)),
                       (D1 - D2) * sigmoid(-1) + (D1 - D3) * sigmoid(-2)]}),
]  # fmt: skip


def logit(chance):
    return log(chance / (1 - chance))


def crossed(*pairs):
    return -sum(log(chance) if reached else log(1 - chance) for reached, chance in pairs)


def odds(*rows):
    return [tuple(map(logit, row)) for row in rows]


ALLRANK = [
    ("test_listmle_ignores_padded_value", ([(0.5, 0.3)], [(1, 0)]), {"listmle": [0.5981389284133911]}),
    ("test_ordinal_single_doc", ([odds((0.8, 0.6))], [(1,)]), {"ordinal": [crossed((1, 0.8), (0, 0.6))]}),
    ("test_ordinal_simple", ([odds((0.8, 0.7), (0.4, 0.3), (0.2, 0.1))], [(2, 1, 0)]), {
        "ordinal": [crossed((1, 0.8), (1, 0.7), (1, 0.4), (0, 0.3), (0, 0.2), (0, 0.1))]}),
    ("test_binary_listnet_simple", ([(0.5, 0.2)], [(1, 0)], {"normalize": True}), {
        "softmax": [-log(share(0.5, 0.5, 0.2))]}),
    ("test_binary_listnet_stable_for_very_small_prediction", ([(0.5, -1e30)], [(1, 0)], {"normalize": True}), {
        "softmax": [0.0]}),
    ("test_listnet_simple", ([(0.5, 0.2)], [(1, 0)]), {
        "listnet": [-share(1, 1, 0) * log(share(0.5, 0.5, 0.2)) - share(0, 1, 0) * log(share(0.2, 0.5, 0.2))]}),
    ("test_listnet_stable_for_very_small_prediction", ([(0.5, -40.0)], [(1, 0)]), {"listnet": [share(0, 1, 0) * 40.5]}),
    ("test_ranknet_onepair", ([(0.5, 0.2)], [(1, 0)]), {"ranknet": [logistic(0.3)]}),
    ("test_ranknet_onepair_minus", ([(0.2, 0.5)], [(1, 0)]), {"ranknet": [logistic(-0.3)]}),
    ("test_ranknet_two_pairs", ([(0.5, 0.2, 0.1)], [(1, 0, 0)]), {"ranknet": [logistic(0.3) + logistic(0.4)]}),
    ("test_ranknet_pair_reversed", ([(0.2, 0.5)], [(0, 1)]), {"ranknet": [logistic(0.3)]}),
    ("test_ranknet_pair_multirelevancy", ([(0.2, 0.5)], [(0, 2)]), {"ranknet": [logistic(0.3)]}),
    ("test_ordinal_single_doc_padded", ([odds((0.8, 0.6), (0.2, 0.1))], [(1, -1)]), {
        "ordinal": [crossed((1, 0.8), (0, 0.6))]}),
    ("ignores_padded_value", ([(0.5, 0.2, 0.5)], [(1, 0, -1)]), {
        "listnet": [-share(1, 1, 0) * log(share(0.5, 0.5, 0.2)) - share(0, 1, 0) * log(share(0.2, 0.5, 0.2))]}),
    ("ignores_padded_value", ([(0.5, 0.2, 0.5)], [(1, 0, -1)], {"normalize": True}), {
        "softmax": [-log(share(0.5, 0.5, 0.2))]}),
    ("test_pointwise_simple, squared, times the entries", ([(0.5, 0.2)], [(1, 0)]), {"mse": [0.5**2 + 0.2**2]}),
    ("test_ranknet_onepair_masked", ([(0.5, 0.2, 0.66)], [(1, 0, -1)]), {"ranknet": [logistic(0.3)]}),
    ("test_ranknet_two_pairs_weighted", ([(0.5, 0.2, 0.1)], [(2, 1, 0)], {"scheme": "arp2"}), {
        "lambda": [(1 * logistic(0.3) + 2 * logistic(0.4) + 1 * logistic(0.1)) / log(2)]}),
    ("test_ranknet_two_pairs_weighted_pow, squared labels", ([(0.5, 0.2, 0.1)], [(4, 1, 0)], {"scheme": "arp2"}), {
        "lambda": [(3 * logistic(0.3) + 4 * logistic(0.4) + 1 * logistic(0.1)) / log(2)]}),
    ("test_approxndcg_ignores_padded", ([(0.5, 0.3, 0.5, 1.0)], [(0.5, 0.3, 0.5, -1)]), {
        "approx_ndcg": [-0.8499219417]}),
    ("test_ndcgloss1_ignores_padded", ([(0.5, 0.3, 0.5, 1.0)], [(0.5, 0.3, 0.5, -1)], {"scheme": "ndcg1"}), {
        "lambda": [2.9272110462]}),
    ("test_ndcgloss2_ignores_padded", ([(0.5, 0.3, 0.5, 1.0)], [(0.5, 0.3, 0.5, -1)], {"scheme": "ndcg2++"}), {
        "lambda": [1.1244146823]}),
    ("test_ranknet_ignores_padded", ([(0.5, 0.3, 0.5, 1.0)], [(0.5, 0.3, 0.5, -1)], {"scheme": "ranknet"}), {
        "lambda": [1.1962778568 / log(2)]}),
]  # fmt: skip

CASES = [
    (f"{peer}, {source}, {name}", name, given, expected)
    for peer, table in (("rax", RAX), ("TF-Ranking", TF_RANKING), ("allRank", ALLRANK))
    for source, given, losses in table
    for name, expected in losses.items()
]
DIGITS = {"approx_ndcg": 1e-5, "approx_mrr": 1e-5, "neural_ndcg": 1e-4}  # those that their tests compare


@pytest.mark.parametrize(("name", "given", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_values_of_their_tests(name, given, expected):
    scores, labels, *options = given
    kept = [(s, y) for rows, row in zip(scores, labels, strict=True) for s, y in zip(rows, row, strict=True) if y >= 0]
    found = LOSSES[name](
        torch.tensor([s for s, _ in kept], dtype=torch.float64),
        [y for _, y in kept],
        group=[sum(y >= 0 for y in row) for row in labels],
        **(options[0] if options else {}),
    )
    found = found.sum() if isinstance(expected, float) else found
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=DIGITS.get(name, 1e-12))


def test_masked_and_empty_lists_of_rax():
    """test_computes_loss_value_with_all_masked, test_grad_does_not_return_nan_with_all_masked: empty lists."""
    for name in RAX[0][2]:
        scores = torch.tensor([0.0, 3.0, 1.0, 2.0], requires_grad=True)
        values = LOSSES[name](scores, torch.tensor([0, 0, 2, 1]), torch.tensor([0, 0, 4, 4]))
        values.sum().backward()
        assert values[[0, 2]].tolist() == [0, 0] and values[1] > 0 and scores.grad.isfinite().all(), name


def test_slopes_of_rax():
    """The doctest of losses.py: the mean over two lists."""
    scores = torch.tensor([0.0, 1, 3, 1, 2, 0], requires_grad=True)
    F.softmax_loss(scores, [0, 0, 1, 1, 0, 0], group=[3, 3]).mean().backward()
    expected = [0.02100503, 0.0570976, -0.07810265, -0.37763578, 0.33262047, 0.04501529]
    assert scores.grad.tolist() == pytest.approx(expected, rel=1e-5)


def test_rmse_of_allrank():
    """test_pointwise_multiple_levels: the root of the mean of (y - levels * s)^2, here of scores times the levels."""
    scores, labels = np.array([0.5, 0.2, 0.7, 0.8]), [1, 0, 2, 3]
    found = (F.mse_loss(3 * scores, labels, group=[4]) / 4).sqrt()
    expected = sqrt(np.mean([0.5**2, 0.6**2, 0.1**2, 0.6**2]))
    assert found.item() == pytest.approx(expected)


def gain(label):
    return 2.0**label - 1


RAX_LISTS = (0.0, 1.0, 2.0), (0.0, 1.0, 0.3)
NEARER = D1 - D2  # of neighbours, whatever their ranks are
LAMBDA_WEIGHTS = [  # of the pairs (0, 1), (0, 2), (1, 2), symmetric in the tests
    ("rax, test_computes_lambdaweights", RAX_LISTS, {}, {
        "arp2": [1.0, 0.3, 0.7],
        "lambdarank": [(D2 - D3) * gain(1), (D1 - D3) * gain(0.3), (D1 - D2) * (gain(1) - gain(0.3))],
        "ndcg2": [NEARER * gain(1), (D2 - D3) * gain(0.3), NEARER * (gain(1) - gain(0.3))],
    }),
    ("rax, test_lambdaweights_with_batchdim_or_segments", ((0.0, 1.0, 2.0), (0, 2, 1)), {}, {
        "arp2": [2.0, 1.0, 1.0], "lambdarank": [(D2 - D3) * gain(2), (D1 - D3) * gain(1), (D1 - D2) * 2],
        "ndcg2": [NEARER * gain(2), (D2 - D3) * gain(1), NEARER * 2],
    }),
    ("rax, test_lambdaweights_with_batchdim_or_segments", ((0.5, 1.5, 1.0), (0, 0, 1)), {}, {
        "arp2": [0.0, 1.0, 1.0], "lambdarank": [0.0, D2 - D3, D1 - D2], "ndcg2": [0.0, NEARER, NEARER],
    }),
    ("rax, test_lambdaweights_with_where_mask", ((0.0, 2.0), (0, 0.3)), {}, {
        "lambdarank": [(D1 - D2) * gain(0.3)], "ndcg2": [NEARER * gain(0.3)],
    }),
    ("rax, test_lambdaweights_with_weights", RAX_LISTS, {"weights": [1.5, 0.5, 1.0]}, {
        "arp2": [1.0, 0.3, 0.7],
        "lambdarank": [(D2 - D3) * 0.5 * gain(1), (D1 - D3) * gain(0.3), (D1 - D2) * abs(0.5 * gain(1) - gain(0.3))],
        "ndcg2": [NEARER * 0.5 * gain(1), (D2 - D3) * gain(0.3), NEARER * abs(0.5 * gain(1) - gain(0.3))],
    }),
    ("TF-Ranking, LabelDiffLambdaWeightTest", ((3.0, 2.0, 1.0), (2, 1, 0)), {}, {"arp2": [1.0, 2.0, 1.0]}),
    ("TF-Ranking, DCGLambdaWeightTest, test_gain_and_discount", ((2.0, 1.0), (2, 1)), {}, {
        "lambdarank": [2 * (D1 - D2)], "ndcg2": [2 * (D1 - D2)],
    }),
]  # fmt: skip


def pair_weights(loss, scores, labels, **options):
    """The weights of the pairs (i, j), i < j, in a sum of w log(1 + exp(s_j - s_i)),
    from the diagonal of its second derivative: an equation per entry, of at most 3 entries and pairs."""
    point, (first, second) = np.array(scores), np.triu_indices(len(scores), 1)
    labels = torch.tensor(labels, dtype=torch.float64)
    bends = F.derivatives(loss)(point, labels, group=[len(point)], **options)[1]
    shares, ends = 1 / (1 + np.exp(point[first] - point[second])), np.eye(len(point))
    return np.linalg.lstsq((ends[first] + ends[second]).T * shares * (1 - shares), bends.numpy(), rcond=None)[0]


@pytest.mark.parametrize(
    ("given", "options", "scheme", "expected"),
    [
        pytest.param(given, options, scheme, expected, id=f"{source}, {scheme}")
        for source, given, options, schemes in LAMBDA_WEIGHTS
        for scheme, expected in schemes.items()
    ],
)
def test_lambda_weights(given, options, scheme, expected):
    """lambdaweights_test.py of rax, which multiplies the weights by the length of the list as TF-Ranking does;
    losses_impl_test.py. Ours are divided by the ideal DCG, as theirs with normalize=True and normalized=True, and the
    loss multiplies a pair by the weight of its more relevant entry."""
    scores, labels = given
    first, second = np.triu_indices(len(scores), 1)
    labels, own = np.array(labels), np.array(options.get("weights", np.ones(len(scores))))
    gains = np.sort(own * (2.0**labels - 1))[::-1]
    ideal = 1.0 if scheme == "arp2" else (gains / np.log2(np.arange(len(gains)) + 2)).sum()
    expected = np.array(expected) * np.where(labels[first] > labels[second], own[first], own[second]) / ideal
    found = pair_weights(F.lambda_loss, scores, labels, scheme=scheme, **options) * log(2)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    if scheme == "lambdarank":
        found = pair_weights(F.lambdarank_loss, scores, labels, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_lambda_weights_with_a_cutoff():
    """rax: test_lambdaweights_with_topn, dcg_lambdaweight: ranks beyond it have discount 0. (The weights of
    dcg2_lambdaweight grow with it instead, and `lambda_loss(k=)` counts pairs of the first k alone, as allRank.)"""
    found = pair_weights(F.lambdarank_loss, *RAX_LISTS, k=1)
    np.testing.assert_allclose(found, [0.0, gain(0.3), gain(1) - gain(0.3)], rtol=1e-9, atol=1e-12)


def test_pairs_of_rax_with_lambda_weights():
    """rax: test_computes_with_pairwise_loss, the mean over 3 pairs, divided by the length 4 of the list."""
    ideal = gain(2) + D2 * gain(1)
    for pair, expected in (("hinge", 0.43137252), ("logistic", 0.34675273)):
        found = F.lambdarank_loss([0.3, 1.9, 1.2], [0, 1, 2], group=[3], pair=pair).item()
        assert found * ideal / 3 == pytest.approx(expected, rel=1e-5)


def test_normalised_lambda_weights_of_tf_ranking():
    """losses_test.py, test_create_ndcg_lambda_weight, divided by the length of the list."""
    largest = 3 / log(2) + 1 / log(3)
    for found in (
        pair_weights(F.lambdarank_loss, (2.0, 1.0), (2, 1)),
        pair_weights(F.lambda_loss, (2.0, 1.0), (2, 1), scheme="ndcg2") * log(2),
    ):
        assert found.item() == pytest.approx(2 * (1 / log(2) - 1 / log(3)) / largest)


@pytest.mark.parametrize("name", RAX[0][2])
def test_segments_and_masks_of_rax(name):
    """test_computes_loss_value_with_segments, test_computes_loss_value_with_where: the values of the lists alone."""
    scores = torch.tensor([0.0, 3, 1, 2, 4, 3, 0, 2], dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1, 0, 2, 1, 0])
    lists = zip(*(part.split([2, 3, 1, 2]) for part in (scores, labels)), strict=True)
    alone = [LOSSES[name](s, y, group=[len(s)]) for s, y in lists]
    found = LOSSES[name](scores, labels, qid=[0, 0, 1, 1, 1, 2, 3, 3])
    torch.testing.assert_close(found, torch.cat(alone))
    padded, inside = torch.tensor([[0.0, 3, 1, 2]]), torch.tensor([[True, True, True, False]])
    expected = LOSSES[name]([0.0, 3.0, 1.0], [0, 0, 2], group=[3])
    found = LOSSES[name](padded, [[0, 0, 2, 1]], mask=inside)
    torch.testing.assert_close(found, expected, check_dtype=False)


@pytest.mark.parametrize("name", RAX[0][2])
def test_slopes_for_zero_labels(name):
    """rax: test_grad_does_not_return_nan_for_zero_labels."""
    scores = torch.tensor([0.0, 3.0, 1.0, 2.0], requires_grad=True)
    LOSSES[name](scores, [0, 0, 0, 0], group=[4]).sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("measure", ["mrr", "recall@2", "p@2", "map", "dcg", "ndcg"])
def test_transformed_measures_have_values_and_slopes(measure):
    """rax: t12n_test.py, ApproxT12nTest: no slope is 0; none is NaN where all labels are 0 or all entries masked."""
    scores = torch.tensor([-2.0, 1, 3, 9, -2, 1, 3, 9], dtype=torch.float64, requires_grad=True)
    values = F.as_loss(measure)(scores, [1, 0, 1, 0, 0, 0, 0, 0], group=[4, 0, 4])
    values.sum().backward()
    assert values[0] < 0 and values[1:].tolist() == [0, 0]
    assert (scores.grad[:4] != 0).all() and scores.grad.isfinite().all()


def test_gumbel_noise_of_rax():
    """t12n_test.py: test_samples_scores_using_gumbel_beta_shape, test_handles_extreme_scores."""

    def same(scores, labels, offsets):
        return scores

    found = F.gumbel(same, samples=1, beta=1e-5)([0.0, 1.0, 2.0], [0, 1, 0], group=[3])
    assert found.tolist() == pytest.approx([0, 1, 2], abs=1e-3)
    found = F.gumbel(same, samples=1)([-3e18, 1.0, 2e22], [0, 1, 0], group=[3])
    assert found.isfinite().all() and found[[0, 2]].tolist() == pytest.approx([-3e18, 2e22])


def test_stochastic_neural_ndcg_of_allrank():
    """tests/losses/test_neuralndcg.py with stochastic=True: noise of the scale .001 leaves the order as it is."""
    loss = F.gumbel(F.neural_ndcg_loss, samples=16, beta=0.001, generator=torch.Generator().manual_seed(0))
    scores, labels = [0.5, 0.2, 0.1, 0.4, 1.0, -1.0, 0.63], [1, 2, 2, 4, 1, 4, 3]
    for k in (None, 3):
        found = loss(torch.tensor(scores, dtype=torch.float64), labels, group=[7], temperature=1e-4, k=k)
        assert found.item() == pytest.approx(-F.ndcg(scores, labels, group=[7], k=k).item(), rel=1e-5)


def test_ranks_of_peers():
    """utils_test.py of rax: SortRankTest, ApproxRanksTest; of TF-Ranking: test_sorted_ranks, without shuffling."""
    scores, offsets = torch.tensor([0.0, 1, 2, 2, 1, 3, 1, 3, 2, 1, 2, 1]), torch.tensor([0, 3, 6, 9, 12])
    assert ranks(scores, offsets).tolist() == [3, 2, 1, 2, 3, 1, 3, 1, 2, 2, 1, 3]
    assert F.soft_ranks([-4.0, 1.0, -3.0, 2.0], group=[4]).argsort().tolist() == [3, 1, 2, 0]


def test_segments_of_rax():
    """segment_utils_test.py; sums and maxima are one per list here."""
    assert segment_sum(torch.tensor([1.0, 2, 4]), torch.tensor([0, 2, 3])).tolist() == [3, 4]
    assert segment_max(torch.tensor([1.0, 2, 4, -5, -5.5, -4.5]), torch.tensor([0, 2, 3, 6])).tolist() == [2, 4, -4.5]
    assert positions_within(torch.tensor([0, 3, 4, 6]), 6).tolist() == [0, 1, 2, 0, 0, 1]
    values, offsets = torch.tensor([-1e34, 3e28, 1e-8, -100001, 0.999]), torch.tensor([0, 3, 5])
    found = values - per_entry(segment_logsumexp(values, offsets), offsets, 5)
    assert found.tolist() == pytest.approx([-1e34 - 3e28, 0, -3e28, -100001.999, 0])
