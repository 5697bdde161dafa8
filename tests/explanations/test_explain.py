"""Parts of differences of scores: they sum to the difference for every ranker, and are those of plain formulas."""

import json
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch

from tests.laws.fitted import fitted, kinds
from tests.laws.rankers import CASES, FEATURES
from tests.rankers.small import lists
from torchrank import (
    AdaRank,
    GBDTRanker,
    ListNet,
    LocalRank,
    NeuralRanker,
    RandomRanker,
    RankBoost,
    Ranker,
    RankingSet,
    Round,
    SparseRows,
    explain,
)

pytestmark = pytest.mark.filterwarnings("ignore")
NETWORKS = {"mlp_ranknet", "mlp_listnet_pca", "mlp_members", "resnet", "dcn", "attention"}
ADAPTERS = {name for name in CASES if name.startswith("adapter")}
INEXACT = NETWORKS | {"local_network"} | ADAPTERS  # integrated gradients


def given(batch, ranker):
    return {"index": batch.index, "queries": batch.queries, "query": batch.query if ranker.num_topics else None}


@pytest.mark.parametrize("name", CASES)
def test_parts_sum_to_the_difference_of_the_scores(name):
    ranker, batch = fitted(name), kinds(CASES[name].kind)["test"][:]
    starts = batch.offsets[:-1][batch.offsets.diff() > 2]
    pairs = torch.cat([torch.stack((starts, starts + 2), 1), torch.stack((starts + 1, starts), 1)])
    found = explain(ranker, batch.x, batch.offsets, pairs, **given(batch, ranker))
    with torch.no_grad():
        scores = ranker(batch.x, batch.offsets, **given(batch, ranker)).double()
    torch.testing.assert_close(found.scores, scores[pairs], atol=1e-5, rtol=1e-5)
    scale = scores[pairs].abs().amax(1).clamp(min=1e-3)
    limit = 1e-3 * found.parts.abs().sum(1) + 1e-6 if name in INEXACT else 2e-6 * scale
    assert (found.residual.abs() <= limit).all(), (found.method, found.residual, found.difference)
    assert found.parts.shape == (len(pairs), FEATURES) and found.names[0] == "f1"
    assert ("exact" in found.method) == (name not in INEXACT)


def test_linear_parts_are_weights_times_differences_of_raw_features():
    some = lists(0)
    for transform in ("none", "standard", "l2"):
        ranker = ListNet(6, transform=transform).fit(some)
        scale = {"standard": lambda t: t.deviation, "l2": lambda t: t.norm}.get(transform, lambda t: torch.ones(6))
        weight = ranker.scorer.weight / scale(ranker.transform)
        found = explain(ranker, some.x, some.offsets, (0, 3))
        torch.testing.assert_close(found.parts[0], weight * (some.x[0] - some.x[3]).double(), atol=1e-6, rtol=1e-5)


def test_principal_components_go_back_to_the_raw_features():
    some = lists(0)
    ranker = ListNet(6, transform=["standard", {"name": "pca", "variance": 0.8}]).fit(some)
    standard, pca = ranker.transform.steps
    weight = (pca.components @ ranker.scorer.weight) / standard.deviation
    found = explain(ranker, some.x.double(), some.offsets, (4, 1))
    torch.testing.assert_close(found.parts[0], weight * (some.x[4] - some.x[1]).double())


def plain_shapley(value, width):
    """(D,) by the formula over all coalitions."""
    parts = np.zeros(width)
    for feature in range(width):
        others = [each for each in range(width) if each != feature]
        for size in range(width):
            for group in combinations(others, size):
                share = factorial(size) * factorial(width - size - 1) / factorial(width)
                parts[feature] += share * (value({*group, feature}) - value(set(group)))
    return parts


def swapped(x, a, b, group):
    """The rows where a and b keep their values of the group and exchange all others."""
    changed = x.clone()
    for feature in range(x.shape[1]):
        if feature not in group:
            changed[a, feature], changed[b, feature] = x[b, feature], x[a, feature]
    return changed


def test_products_have_the_shapley_values_of_their_features():
    some = lists(0)
    x = some.x[:, :4].double()
    ranker = ListNet(4, transform="quadratic", rounds=20).fit(RankingSet(x, some.labels, some.offsets))
    first = x[: int(some.offsets[1])]
    bounds = torch.tensor([0, len(first)])

    def value(group):
        mixed = torch.stack([first[0] if f in group else first[1] for f in range(4)]).diagonal()
        return float(ranker(mixed[None], torch.tensor([0, 1])))

    found = explain(ranker, first, bounds, (0, 1))
    np.testing.assert_allclose(found.parts[0], plain_shapley(value, 4), atol=1e-9)


class Steps(Ranker):
    """A foreign ranker without gradients, whose scores depend on the whole list."""

    def score(self, batch):
        return torch.floor(2 * batch.x[:, 0] * batch.x[:, 1]) + (batch.x[:, 2] > batch.x[:, 2].mean()).to(batch.x.dtype)

    def round(self, lists, number):
        return Round(done=True)


class Products(Steps):
    """One with gradients."""

    def score(self, batch):
        return (batch.x[:, 0] * batch.x[:, 1]) ** 3 + batch.x[:, 2]


@pytest.mark.parametrize("make", [lambda: Steps(4, rounds=1), lambda: RandomRanker(4)])
def test_shapley_values_by_brute_force(make):
    some = lists(0)
    x = some.x[: int(some.offsets[1]), :4].double()
    bounds = torch.tensor([0, len(x)])
    ranker = make()

    def value(group):
        scores = ranker(swapped(x, 2, 0, group), bounds)
        return float(scores[2] - scores[0]) / 2

    found = explain(ranker, x, bounds, (2, 0))
    np.testing.assert_allclose(found.parts[0], plain_shapley(value, 4), atol=1e-12)
    assert found.method == "Shapley values, exact" and float(found.residual.abs()) < 1e-12


def test_many_features_are_sampled_and_still_sum_to_the_difference():
    x = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    ranker = Steps(30, rounds=1)
    found = explain(ranker, x, torch.tensor([0, 5]), [[0, 1], [3, 2]])
    assert "128 permutations" in found.method and found.residual.abs().max() < 1e-6
    assert not found.parts[:, 3:].any()  # features that the score ignores


def test_integrated_gradients_of_a_known_function():
    """(x y)^3 along the straight line from b to a, by a fine sum in numpy."""
    x = torch.tensor([[1.0, 2.0, 0.5, 0.0], [0.5, 1.5, 0.1, 0.0], [0.0, 1.0, 0.3, 0.0]], dtype=torch.float64)
    found = explain(Products(4, rounds=1), x, torch.tensor([0, 3]), (0, 1))
    a, b = x[0].numpy(), x[1].numpy()
    path = b + (np.arange(100_000)[:, None] + 0.5) / 100_000 * (a - b)
    product = 3 * (path[:, 0] * path[:, 1]) ** 2
    expected = [(product * path[:, 1]).mean() * 0.5, (product * path[:, 0]).mean() * 0.5, 0.4, 0.0]
    np.testing.assert_allclose(found.parts[0], expected, rtol=1e-4)
    assert "integrated gradients" in found.method and float(found.residual) != 0


class Relative(torch.nn.Module):
    """A network that looks at the whole list."""

    def __init__(self, num_inputs):
        super().__init__()
        self.out = torch.nn.Linear(num_inputs, 1)

    def forward(self, x, offsets):
        lists = torch.searchsorted(offsets, torch.arange(x.shape[0]), right=True) - 1
        sums = torch.zeros(len(offsets) - 1, x.shape[1], dtype=x.dtype).index_add(0, lists, x.square())
        return self.out(torch.tanh(x / sums[lists].sqrt()))


def test_networks_that_look_at_the_whole_list():
    some = lists(0)
    ranker = NeuralRanker(6, Relative, "listnet", lr=0.1).fit(some, epochs=2)
    found = explain(ranker, some.x, some.offsets)
    assert (found.residual.abs() <= 1e-4 * found.difference.abs() + 1e-6).all()
    assert "integrated gradients" in found.method


def test_nearly_equal_scores_of_a_network_have_gradients_too():
    """A difference far below the parts that make it up."""
    some = lists(0)
    ranker = NeuralRanker(6, scorer_options={"hidden": [16]}).fit(some, epochs=1)
    x = some.x[: int(some.offsets[1])].clone()
    bounds = torch.tensor([0, len(x)])
    scores = ranker(x, bounds).detach()
    near = (scores[:, None] - scores).abs() + 1e9 * torch.eye(len(x))
    pair = divmod(int(near.argmin()), len(x))
    found = explain(ranker, x, bounds, pair)
    assert "integrated gradients" in found.method and float(found.residual.abs()) < 1e-3 * float(
        found.parts.abs().sum()
    )


def test_trees_have_the_shap_values_of_lightgbm():
    some = lists(0)
    ranker = GBDTRanker(6, rounds=10, min_leaf=5).fit(some)
    found = explain(ranker, some.x, some.offsets, (0, 1))
    shap = ranker.booster.predict(some.x[:2].numpy(), pred_contrib=True)
    np.testing.assert_allclose(found.parts[0], (shap[0] - shap[1])[:6], atol=1e-12)
    assert float(found.residual.abs()) < 1e-10


def test_trees_have_the_shap_values_of_xgboost():
    xgboost, some = pytest.importorskip("xgboost"), lists(0)
    ranker = GBDTRanker(6, rounds=10, engine="xgboost", threads=1).fit(some)
    found = explain(ranker, some.x, some.offsets, (0, 1))
    shap = ranker.booster.predict(xgboost.DMatrix(some.x[:2].numpy()), pred_contribs=True).astype(np.float64)
    np.testing.assert_allclose(found.parts[0], (shap[0] - shap[1])[:6], atol=1e-12)
    assert float(found.residual.abs()) < 1e-6


def test_rules_add_up_by_feature():
    some = lists(0)
    ranker = RankBoost(6, rounds=40).fit(some)
    found, expected = explain(ranker, some.x, some.offsets, (0, 1)), np.zeros(6)
    for feature, threshold, alpha in zip(ranker.feature, ranker.threshold, ranker.alpha, strict=True):
        expected[feature] += float(alpha) * (int(some.x[0, feature] > threshold) - int(some.x[1, feature] > threshold))
    np.testing.assert_allclose(found.parts[0], expected, atol=1e-12)


def test_a_soft_mixture_of_local_models():
    own = kinds("lists")
    ranker = LocalRank(5, base_options={"l2": 0.1}, clusters=2, assignment="soft", min_lists=1, rounds=12)
    ranker.fit(own["train"], own["val"])
    batch = own["test"][:]
    found = explain(ranker, batch.x, batch.offsets)
    assert len(found) == 3 and found.residual.abs().max() < 1e-9 and (found.difference >= 0).all()


def test_sparse_rows_and_arrays_and_other_ways_to_say_it():
    some = lists(0)
    x = some.x * (some.x > 0)
    ranker = ListNet(6, transform="l2").fit(RankingSet(SparseRows.from_dense(x), some.labels, some.offsets))
    dense = explain(ranker, x, some.offsets, [(0, 1), (2, 0)])
    for other in (
        explain(ranker, SparseRows.from_dense(x), some.offsets, torch.tensor([[0, 1], [2, 0]])),
        explain(ranker, x.numpy(), group=some.offsets.diff(), pairs=np.array([[0, 1], [2, 0]])),
    ):
        torch.testing.assert_close(other.parts, dense.parts)
    best = explain(ranker, x, some.offsets)
    order = ranker.rank(x, some.offsets)
    assert best.pairs[0].tolist() == order[:2].tolist()
    assert len(explain(ranker, x, some.offsets, torch.zeros(0, 2, dtype=torch.int64))) == 0
    assert float(explain(ranker, x, some.offsets, (3, 3)).parts.abs().max()) == 0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((0, 10_000), r"pairs run over 0\.\.10000, but there are"),
        ((-1, 0), r"pairs run over -1\.\.0"),
        ([[0, 1, 2]], r"pairs must be integers \(P, 2\)"),
        ((0.0, 1.0), r"pairs must be integers \(P, 2\), or one pair \(a, b\), got float"),
        ((0, 100), "both entries of a pair must be in one list"),
    ],
)
def test_bad_pairs_are_refused(pairs, message):
    some = lists(0)
    with pytest.raises(ValueError, match=message):
        explain(ListNet(6, rounds=1).fit(some), some.x, some.offsets, pairs)


def test_results_print_themselves(tmp_path):
    some = lists(0)
    ranker = NeuralRanker(6, scorer_options={"hidden": [8]}).fit(some, epochs=2)
    ranker.feature_names = tuple("abcdef")
    found = explain(ranker.train(), some.x, some.offsets, (0, 1))
    assert ranker.training
    told = json.loads(json.dumps(found.to_dict()))
    assert told["pair"] == [0, 1] and {each["name"] for each in told["features"]} == set("abcdef")
    total = sum(each["part"] for each in told["features"]) + told["residual"]
    assert total == pytest.approx(told["difference"], abs=1e-9)
    text = str(found)
    assert "residual" in text and "integrated gradients" in text and "entry 0" in text
    found.plot(tmp_path / "why.svg", top=4)
    assert b"<svg" in (tmp_path / "why.svg").read_bytes()


def test_adarank_within_its_list():
    """The default transform looks at the whole list, whose other documents matter."""
    some = lists(0)
    ranker = AdaRank(6, rounds=20).fit(some)
    end = int(some.offsets[1])
    x = some.x[:end].double()
    span = (x.amax(0) - x.amin(0)).clamp(min=1e-12)
    found = explain(ranker, x, torch.tensor([0, end]), (0, 1))
    torch.testing.assert_close(found.parts[0], ranker.weight * (x[0] - x[1]) / span, atol=1e-9, rtol=1e-6)
