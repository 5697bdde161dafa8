"""Soft ranks and losses of relaxed rankings, LambdaLoss, Gumbel noise: peers' own values, limits, and long lists."""

import math
import warnings

import numpy as np
import pytest
import torch

from tests.reference import soft as reference
from tests.reference.measures import per_list
from torchrank import functional as F

LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)
LISTS = torch.tensor([1.4, -2.8, -0.4, 0.0, 1.8, 1.0, 1.2, -3.2]), torch.tensor([0, 3, 5, 8])  # of TF-Ranking's tests
FIRST = (3 / LN4 + 1 / LN3) / (3 / LN2 + 1 / LN3)


def lists(seed=0, lengths=(7, 1, 0, 5, 9), grades=4):
    draw = np.random.default_rng(seed)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    scores = torch.tensor(draw.normal(size=int(offsets[-1])))
    return scores, torch.tensor(draw.integers(0, grades, int(offsets[-1]))), offsets


def differences(function, scores, step=1e-6):
    found = []
    for i in range(len(scores)):
        move = step * torch.eye(len(scores), dtype=scores.dtype)[i]
        found.append((function(scores + move).sum() - function(scores - move).sum()) / (2 * step))
    return torch.stack(found)


# --- values of peers' own tests ---


def test_soft_ranks_of_rax_and_tf_ranking():
    """rax: rax/_src/utils_test.py, ApproxRanksTest; TF-Ranking: losses_impl_test.py, test_approx_ranks."""
    s = reference.sigmoid
    expected = [1 + s(4) + s(5), 1 + s(-4) + s(1), 1 + s(-5) + s(-1)]
    torch.testing.assert_close(F.soft_ranks([-3.0, 1.0, 2.0], group=[3]), torch.tensor(expected, dtype=torch.float64))
    found = F.soft_ranks([100.0, 300, 200, 0, 400, 200, 150, 300], group=[4, 4], temperature=0.1)
    assert found.tolist() == pytest.approx([3, 1, 2, 4, 1, 3, 4, 2])


def test_approx_ndcg_of_tf_ranking():
    """losses_impl_test.py, ApproxNDCGLossTest; items of label -1 are left out, weights of lists are `list_weights`."""
    scores, offsets = LISTS
    given = scores, torch.tensor([0, 2, 1, 1, 0, 0, 0, 0]), offsets
    expected = np.array([FIRST, LN2 / LN3, 0])
    found = F.approx_ndcg_loss(*given, temperature=0.1)
    np.testing.assert_allclose(found, -expected, atol=1e-5)
    for weights in ([2.0, 1.0, 1.0], [(2 * 2 + 1 * 3) / 3, 4.0, 0.0]):
        found = F.approx_ndcg_loss(*given, temperature=0.1, list_weights=weights)
        np.testing.assert_allclose(found, -expected * weights, atol=1e-5)
    rank = 1 + reference.sigmoid(-1)
    for label in (1, 1000):
        with warnings.catch_warnings(action="ignore"):
            found = F.approx_ndcg_loss([1.0, 2.0], [0, label], group=[2])
        assert found.item() == pytest.approx(-LN2 / math.log(1 + rank), abs=1e-5)


def test_approx_ndcg_of_allrank():
    """tests/test_approxndcg.py."""
    assert F.approx_ndcg_loss([0.5, 0.3, 0.5], [0.5, 0.3, 0.5], group=[3]).item() == pytest.approx(-0.8499219417)


def test_approx_mrr_of_tf_ranking():
    """losses_impl_test.py, ApproxMRRLossTest."""
    scores, labels = [1.4, -2.8, -0.4, 0.0, 1.8, 10.2, 1.0, 1.2, -3.2], [0, 0, 1, 1, 0, 1, 0, 0, 0]
    found = F.approx_mrr_loss(scores, labels, group=[3, 3, 3], temperature=0.1)
    np.testing.assert_allclose(found, [-1 / 2, -(1 / 3 + 1) / 2, 0], atol=1e-5)
    found = F.approx_mrr_loss([1.0, 2.0], [0, 1], group=[2])
    assert found.item() == pytest.approx(-1 / (1 + reference.sigmoid(-1)))


def test_transformed_measures_of_rax():
    """rax/_src/t12n.py, the examples of `approx_t12n`."""
    given = [0.0, 1.0, 3.0, 2.0], [0, 0, 1, 2]
    assert F.as_loss("ndcg")(*given, group=[4]).item() == pytest.approx(-0.71789175)
    assert F.as_loss(F.reciprocal_rank)(*given, group=[4]).item() == pytest.approx(-0.6965873)


@pytest.mark.parametrize(
    ("scheme", "expected"), [("ndcg1", 2.9272110462), ("ndcg2++", 1.1244146823), ("ranknet", 1.1962778568 / LN2)]
)
def test_lambda_loss_of_allrank(scheme, expected):
    """tests/test_lambdaloss.py; its RankNet has the natural logarithm."""
    found = F.lambda_loss([0.5, 0.3, 0.5], [0.5, 0.3, 0.5], group=[3], scheme=scheme)
    assert found.item() == pytest.approx(expected)


def test_lambda_weights_of_rax():
    """rax/_src/lambdaweights_test.py, test_computes_with_pairwise_loss, before weights were multiplied by the length
    of the list: the mean over the 3 pairs, in natural logarithms, without the ideal DCG."""
    scores, labels = [0.3, 1.9, 1.2], [0, 1, 2]
    ideal = 3 + LN2 / LN3
    for scheme, expected in (("lambdarank", 0.34675273), ("ndcg2", 0.4053712)):
        found = F.lambda_loss(scores, labels, group=[3], scheme=scheme).item() * LN2 * ideal
        assert found / 3 == pytest.approx(expected, rel=1e-5)
    found = F.lambda_loss(scores, labels, group=[3], scheme="arp2").item() * LN2
    assert found / 3 == pytest.approx(0.6564648, rel=1e-5)


@pytest.mark.parametrize(("k", "temperature"), [(None, 0.01), (3, 0.001)])
def test_neural_ndcg_of_allrank(k, temperature):
    """tests/losses/test_neuralndcg.py: NDCG itself, at a low temperature."""
    for scores, labels in (
        ([0.5, 0.2], [1, 0]),
        ([0.5, 0.2, 0.1, 0.4, 1.0, -1.0, 0.63], [1, 2, 2, 4, 1, 4, 3]),
        ([0.5, -1e30], [1, 0]),
    ):
        found = F.neural_ndcg_loss(scores, labels, group=[len(scores)], temperature=temperature, k=k)
        assert found.item() == pytest.approx(-F.ndcg(scores, labels, group=[len(scores)], k=k).item(), rel=1e-5)


def test_neural_ndcg_of_tf_ranking():
    """losses_impl_test.py, NeuralSortNDCGLossTest."""
    scores, offsets = LISTS
    labels = torch.tensor([0, 2, 1, 1, 0, 0, 0, 0])
    found = F.neural_ndcg_loss(scores, labels, offsets, temperature=0.1)
    np.testing.assert_allclose(found, [-FIRST, -LN2 / LN3, 0], atol=1e-4)
    assert F.neural_ndcg_loss([1.0, 2.0], [0, 1], group=[2], temperature=0.1).item() == pytest.approx(-1, abs=1e-4)


# --- soft measures ---

MEASURES = [
    "ndcg",
    "ndcg@2",
    "dcg@3",
    "map",
    "map@2",
    "mrr",
    "mrr@2",
    "p@3",
    "recall@2",
    "hit@2",
    "hits@2",
    "auc",
    "opa",
]
MEASURES += ["r_precision", "rbp", "rbp@3", "arp"]


@pytest.mark.parametrize("name", MEASURES)
def test_cold_measures_are_the_measures(name):
    scores, labels, offsets = lists(1)
    scores = scores * 20
    expected = F.evaluate(scores, labels, offsets, measures=[name])[name].nan_to_num()
    expected = torch.where(
        torch.tensor([len(set(part.tolist())) > 1 for part in labels.split([7, 1, 0, 5, 9])]), expected, 0
    )
    found = F.as_loss(name, temperature=0.02)(scores, labels, offsets)
    torch.testing.assert_close(found, expected if name == "arp" else -expected, rtol=1e-6, atol=1e-6)


WEIGHTED = {
    "map": F.average_precision, "mrr": F.reciprocal_rank, "hit@2": F.hit, "p@2": F.precision, "rbp": F.rbp,
    "r_precision": F.r_precision, "auc": F.auc, "opa": F.opa, "ndcg": F.ndcg, "arp": F.arp,
    "all_pairs_error": F.all_pairs_error,
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_mean_what_they_mean_in_the_measure(name):
    scores, labels, offsets = lists(6, lengths=(6, 9))
    labels[[0, 6]], labels[[1, 7]] = 2, 0
    weights = torch.from_numpy(np.random.default_rng(7).uniform(0.1, 3, len(scores)))
    cut = {"k": 2} if "@" in name else {}
    expected = WEIGHTED[name](scores, labels, offsets, weights=weights, **cut)
    found = F.as_loss(name, temperature=1e-4)(scores, labels, offsets, weights=weights)
    torch.testing.assert_close(found, expected if name in ("arp", "all_pairs_error") else -expected)


def test_soft_pairs():
    scores, labels = torch.tensor([0.0, math.log(3), 0.0]), torch.tensor([0, 1, 2])
    loss = F.as_loss("opa")(scores, labels, group=[3])
    wrong = 1 / 4 + 1 / 2 + 3 / 4  # 1 before 0, 2 before 0, 2 before 1
    assert loss.item() == pytest.approx(wrong / 3 - 1)
    assert F.as_loss(F.all_pairs_error)(scores, labels, group=[3]).item() == pytest.approx(wrong / 3)


def test_cold_err_is_err():
    scores, labels, offsets = lists(2)
    found = F.as_loss("err", temperature=1e-3, max_label=3)(scores * 20, labels, offsets)
    expected = F.err(scores, labels, offsets, max_label=3)
    torch.testing.assert_close(found[[0, 3, 4]], -expected[[0, 3, 4]])


@pytest.mark.parametrize("name", MEASURES)
def test_soft_measures_have_gradients(name):
    scores, labels, offsets = lists(3, lengths=(5, 4))
    loss = F.as_loss(name, temperature=0.7)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, labels, offsets), scores)
    (slopes,) = torch.autograd.grad(loss(scores, labels, offsets).sum(), scores)
    assert slopes.abs().sum() > 0


def test_soft_average_precision():
    scores, labels, offsets = lists(4)
    found = F.as_loss("map", temperature=0.5, k=3)(scores, labels, offsets)
    expected = reference.soft_average_precision(scores[:7].tolist(), labels[:7].tolist(), temperature=0.5, k=3)
    assert found[0].item() == pytest.approx(-expected, rel=1e-12)


@pytest.mark.parametrize(
    ("measure", "options", "message"),
    [
        (F.recall, {}, "recall of soft ranks needs k"),
        ("err@3", {}, "err of soft ranks needs max_label"),
        ("map", {"gain": "linear"}, "map has no option gain: choose among k, threshold"),
        ("mean_ndcg", {}, "there is no soft form of mean_ndcg: choose among ndcg, dcg"),
        ("ndcg@3", {"k": 5}, "has the cut-off 3, got k=5 as well"),
    ],
)
def test_wrong_measures_are_refused(measure, options, message):
    with pytest.raises(ValueError, match=message):
        F.as_loss(measure, **options)


def test_temperatures_must_be_positive():
    for function in (F.approx_ndcg_loss, F.neural_ndcg_loss):
        with pytest.raises(ValueError, match="temperature must be > 0, got 0"):
            function([1.0, 2.0], [0, 1], group=[2], temperature=0)


# --- weights ---


@pytest.mark.parametrize("name", ["approx_ndcg_loss", "approx_mrr_loss", "neural_ndcg_loss"])
def test_weights_multiply_gains(name):
    scores, labels, offsets = lists(5)
    weights = torch.rand(len(scores), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = getattr(F, name)(scores, labels, offsets, weights=weights)
    for place, (a, b) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:], strict=False)):
        one = getattr(reference, name)(scores[a:b].tolist(), labels[a:b].tolist(), weights=weights[a:b].tolist())
        assert found[place].item() == pytest.approx(one, rel=1e-10)


def test_weights_of_lambda_loss():
    """The pairs of an entry twice, and its gain; without gains in the weights the pairs alone."""
    scores, labels, offsets = lists(6, lengths=(6,))
    weights = torch.ones(6, dtype=torch.float64)
    plain = F.lambda_loss(scores, labels, offsets, scheme="arp2")
    torch.testing.assert_close(F.lambda_loss(scores, labels, offsets, scheme="arp2", weights=weights * 3), 3 * plain)
    best = int(labels.argmax())
    weights[best] = 2.0
    pairs = reference.lambda_weights(scores.tolist(), labels.tolist(), scheme="arp2")
    doubled = {pair: w * (2 if pair[0] == best else 1) for pair, w in pairs.items()}
    expected = reference.lambda_loss(scores.tolist(), labels.tolist(), weights=doubled)
    assert F.lambda_loss(scores, labels, offsets, scheme="arp2", weights=weights).item() == pytest.approx(expected)


# --- NeuralNDCG ---


@pytest.mark.parametrize("iterations", [1, 3, 50])
def test_slopes_of_neural_ndcg(iterations):
    scores, labels, offsets = lists(7)
    loss = lambda s: F.neural_ndcg_loss(s, labels, offsets, k=4, iterations=iterations)  # noqa: E731
    (slopes,) = torch.autograd.grad(loss(moving := scores.clone().requires_grad_()).sum(), moving)
    torch.testing.assert_close(slopes, differences(loss, scores), rtol=0, atol=1e-7)
    expected = per_list(reference.neural_ndcg_loss, scores, labels, offsets, k=4, iterations=iterations)
    np.testing.assert_allclose(loss(scores), expected, atol=1e-12)


# --- Gumbel noise ---


def test_gumbel_copies_are_lists_end_to_end():
    scores, labels, offsets = lists(9)
    seen = {}

    def loss(scores, labels, offsets, **options):
        seen.update(options, scores=scores, labels=labels, offsets=offsets)
        return F.listnet_loss(scores, labels, offsets)

    draw = torch.Generator().manual_seed(0)
    weights = torch.arange(len(scores), dtype=torch.float64)
    found = F.gumbel(loss, samples=3, generator=draw)(scores, labels, offsets, weights=weights, k=7)
    assert found.shape == (5,) and len(seen["scores"]) == 3 * len(scores)
    assert seen["k"] == 7 and seen["weights"].tolist() == 3 * weights.tolist()
    assert seen["offsets"].offsets.diff().tolist() == 3 * offsets.diff().tolist()
    again = F.gumbel(loss, samples=3, generator=torch.Generator().manual_seed(0))(scores, labels, offsets)
    torch.testing.assert_close(again, found, rtol=0, atol=0)
    torch.testing.assert_close(
        F.gumbel(loss, samples=2, beta=0)(scores, labels, offsets), loss(scores, labels, offsets)
    )


def test_gumbel_repeats_margins_of_entries():
    scores, labels, offsets = lists(9)
    options = {"margin": labels.double()}
    found = F.gumbel(F.domination_loss, samples=3, beta=0)(scores, labels, offsets, **options)
    torch.testing.assert_close(found, F.domination_loss(scores, labels, offsets, **options))
    matrix = {"margin": [[0.0] * 4] * 4}
    found = F.gumbel(F.domination_loss, samples=2, beta=0)(scores, labels, offsets, **matrix)
    torch.testing.assert_close(found, F.domination_loss(scores, labels, offsets))


def test_gumbel_noise_has_its_distribution():
    """The first of two scores wins with the chance of the softmax; the mean of the noise is Euler's constant."""
    wins = F.gumbel(
        lambda s, y, o: (s[::2] > s[1::2]).double(), samples=20000, generator=torch.Generator().manual_seed(1)
    )
    assert wins(torch.tensor([1.0, 0.0]), [0, 1], group=[2]).item() == pytest.approx(reference.sigmoid(1), abs=0.01)
    noise = F.gumbel(lambda s, y, o: s, samples=20000, beta=2.0, generator=torch.Generator().manual_seed(2))
    assert noise(torch.tensor([0.0]), [0], group=[1]).item() == pytest.approx(2 * 0.5772, abs=0.05)


def test_gumbel_approx_ndcg_learns():
    scores, labels, offsets = lists(10)
    scores.requires_grad_()
    F.gumbel(F.approx_ndcg_loss)(scores.float(), labels.numpy(), offsets).sum().backward()
    assert scores.grad.isfinite().all() and scores.grad.abs().sum() > 0


# --- long lists ---


LONG = [("approx_ndcg_loss", {}), ("lambda_loss", {})]


@pytest.mark.parametrize(("name", "options"), LONG, ids=str)
def test_a_list_of_2500_entries_takes_bounded_memory(name, options):
    """All pairs of float32 scores would be 25 MB in each tensor."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(2500, generator=draw, requires_grad=True)
    labels = torch.randint(0, 5, (2500,), generator=draw)
    with torch.profiler.profile(profile_memory=True) as seen:
        F.LOSSES[name.removesuffix("_loss")](scores, labels, torch.tensor([0, 2500]), **options).sum().backward()
    assert scores.grad.isfinite().all()
    assert max(event.cpu_memory_usage for event in seen.events()) < 12e6
