"""Losses against the expected values of other libraries' own tests, with the test that each value comes from.

rax: google/rax, rax/_src/losses_test.py (values per list, `reduce_fn=jnp.sum`; masked entries are left out).
TF-Ranking: tensorflow/ranking, tensorflow_ranking/python/losses_impl_test.py; its means over lists, items or pairs are
written as the sum that they divide. allRank: allegro/allRank, tests/losses and tests.
"""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from torchrank import functional as F
from torchrank.functional import LOSSES


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
]  # fmt: skip

LISTS = [(1.0, 3.0, 2.0), (1.0, 2.0, 3.0)]
GRADES = [(0, 0, 1), (0, 0, 2)]
THIRD = share(2, 1, 3, 2)
LAST = share(3, 1, 2, 3)
ORDERED = [(0.0, log(3), log(2)), (0.0, log(2), log(3))], [(0, 2, 1), (1, 0, 2)]
NEAR = [(0.2, 0.5, 0.3), (0.2, 0.3, 0.5)], [(0, 0, 1), (0, 0, 2)]
MLE = [-log(3 / 6) - log(2 / 3), -log(3 / 6) - log(1 / 3)]
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
]  # fmt: skip

CASES = [
    (f"{peer}, {source}, {name}", name, given, expected)
    for peer, table in (("rax", RAX), ("TF-Ranking", TF_RANKING), ("allRank", ALLRANK))
    for source, given, losses in table
    for name, expected in losses.items()
]


@pytest.mark.parametrize(("name", "given", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_values_of_their_tests(name, given, expected):
    scores, labels, *options = given
    flat = torch.tensor([row for rows in scores for row in rows], dtype=torch.float64)
    found = LOSSES[name](
        flat, [y for row in labels for y in row], group=[len(row) for row in labels], **(options[0] if options else {})
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_masked_and_empty_lists_of_rax():
    """test_computes_loss_value_with_all_masked, test_grad_does_not_return_nan_with_all_masked: empty lists."""
    for name in RAX[0][2]:
        scores = torch.tensor([0.0, 3.0, 1.0, 2.0], requires_grad=True)
        values = LOSSES[name](scores, torch.tensor([0, 0, 2, 1]), torch.tensor([0, 0, 4, 4]))
        values.sum().backward()
        assert values[[0, 2]].tolist() == [0, 0] and values[1] > 0 and scores.grad.isfinite().all(), name


def test_rmse_of_allrank():
    """test_pointwise_multiple_levels: the root of the mean of (y - levels * s)^2, here of scores times the levels."""
    scores, labels = np.array([0.5, 0.2, 0.7, 0.8]), [1, 0, 2, 3]
    found = (F.mse_loss(3 * scores, labels, group=[4]) / 4).sqrt()
    expected = sqrt(np.mean([0.5**2, 0.6**2, 0.1**2, 0.6**2]))
    assert found.item() == pytest.approx(expected)
