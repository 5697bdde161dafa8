"""GMML and L-GMML as rankers: scores, scales and weights typed again in numpy; laws of the fit; labels out of reach."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from tests.rankers.local import KERNELS, WEIGHTS, fit, moved, plain_distance, plain_scores, rows_of
from tests.rankers.small import FEATURES, lists
from torchrank import GMML, LGMML
from torchrank.rankers.lgmml.compiled import CompiledScorer

CHANGES = [
    *({"kernel": kernel} for kernel in (*KERNELS, "localized")),
    {"kernel": "rbf", "beta": 0.5},
    {"kernel": "laplace", "beta": 0.5, "tau": "q95"},
    {"kernel": "localized", "beta": 0.5, "tau": "max"},
    {"tau": 3.0, "distance": "eq12"},
    {"anchor": "best"},
    {"anchor": "search", "t": 0.3},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_scores(tmp_path, change):
    ranker, test = fit(tmp_path, precision="64-true", **change), lists(2)
    ranker.weights.copy_(torch.tensor([0.5, 1.0, 0.0, 2.0]))
    rows = rows_of(ranker, test)
    options = {"kernel": change.get("kernel", "distance"), "beta": change.get("beta", 2.0)}
    expected = plain_scores(ranker, rows, [0.5, 1.0, 0.0, 2.0], **options)
    np.testing.assert_allclose(ranker(test.x.double(), test.offsets), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tau", "quantile"), [("median", 0.5), ("q95", 0.95), ("max", 1.0)])
def test_scales_are_quantiles_of_the_training_distances(tmp_path, tau, quantile):
    ranker, train = fit(tmp_path, precision="64-true", tau=tau), lists(0)
    rows = rows_of(ranker, train)
    for factor, anchor, found in zip(ranker.factors.numpy(), ranker.anchors.numpy(), ranker.tau, strict=True):
        distances = [plain_distance(factor, row, anchor) for row in rows]
        assert float(found) == pytest.approx(np.quantile(distances, quantile), rel=1e-9)


def test_the_first_round_is_complete_and_gmml_is_one_metric(tmp_path):
    ranker = fit(tmp_path, make=GMML)
    assert ranker.factors.shape == (1, FEATURES, FEATURES) and ranker.tau.tolist() == ranker.weights.tolist() == [1]
    same = fit(tmp_path, metrics=1, queries_per_metric=None, tau=1.0)
    assert torch.equal(ranker.factors, same.factors)
    test = lists(2)
    expected = plain_scores(ranker, rows_of(ranker, test), [1.0], "distance")
    np.testing.assert_allclose(ranker(test.x, test.offsets), expected, rtol=1e-4, atol=1e-4)


# ---- every option has an effect --------------------------------------------------------------------------------------

EFFECTS = [
    ({}, {"metrics": 5}),
    ({}, {"queries_per_metric": 2}),
    ({}, {"high": "max"}),
    ({"high": "max"}, {"high": "positive"}),
    ({}, {"t": 0.2}),
    ({}, {"ridge": 1.0}),
    ({}, {"ridge_mode": "absolute"}),
    ({"tau": 1.0}, {"scatter": "sum"}),
    ({}, {"anchor": "best"}),
    ({}, {"anchor": "search"}),
    ({}, {"kappa": 1.0}),
    ({"anchor": "best"}, {"anchor_candidates": 1}),
    ({"anchor": "best", "metrics": 8}, {"exclude_self": True}),
    ({}, {"distance": "eq12"}),
    ({}, {"kernel": "rbf"}),
    ({"kernel": "laplace"}, {"beta": 1.0}),
    ({}, {"tau": "max"}),
    ({}, {"seed": 1}),
    ({}, {"transform": "l2"}),
    ({}, {"rounds": 3}),
    ({"rounds": 3}, {"mode": "sgd"}),
    ({"rounds": 3, "mode": "sgd"}, {"margin": 2.0}),
    ({"rounds": 3}, {"margin": 2.0}),
    ({"rounds": 3}, {"negatives": "zero"}),
    ({"rounds": 3, "mode": "sgd"}, {"negatives": "zero"}),
    ({"rounds": 3}, {"lr": 0.01}),
    ({"rounds": 3, "mode": "sgd", "lr": 5.0}, {"nonneg": False}),
    ({"rounds": 12, "lr": 0.9, "anchor": "best", "kernel": "rbf"}, {"nonneg": False}),
    ({"rounds": 3}, {"weights": "per_query"}),
    ({"rounds": 3}, {"weights": "amortized"}),
    ({"rounds": 3, "weights": "per_query"}, {"fallback": "ones"}),
    ({"rounds": 3, "weights": "per_query"}, {"fallback": "knn"}),
]


@pytest.fixture(scope="module")
def known():
    """Scores of the fits that several options are compared with."""
    return {}


@pytest.mark.parametrize(("base", "change"), EFFECTS, ids=str)
def test_every_option_has_an_effect(tmp_path, known, base, change):
    test = lists(2)
    if str(base) not in known:
        known[str(base)] = fit(tmp_path, **base)(test.x, test.offsets)
    one, other = known[str(base)], fit(tmp_path, **base | change)(test.x, test.offsets)
    assert other.isfinite().all() and (one - other).abs().max() > 1e-4


@pytest.mark.parametrize("solver", ["eigh", "svd", "dbase", "gemm"])
def test_solvers_agree(tmp_path, solver):
    one, other = (fit(tmp_path, solver=name, precision="64-true") for name in ("auto", solver))
    np.testing.assert_allclose(one.factors @ one.factors.mT, other.factors @ other.factors.mT, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", WEIGHTS)
def test_features_that_are_constant_in_training_are_ignored(tmp_path, mode):
    train, test = lists(0), lists(2)
    train.x[:, 2] = 1.5
    ranker, x = fit(tmp_path, moved(train=train), rounds=3, **WEIGHTS[mode]), test.x.clone()
    scores = ranker(x, test.offsets)
    x[:, 2] += 100 * torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ranker(x, test.offsets), scores, rtol=0, atol=0)
    if mode in ("shared", "mean", "ones"):
        torch.testing.assert_close(ranker.compiled()(ranker.transform(x, test.offsets)), scores)


def test_features_of_the_query_may_be_left_out(tmp_path):
    train, test = lists(0), lists(2)
    train.x[:, 2] = torch.repeat_interleave(torch.arange(12.0), train.offsets.diff())
    x = test.x.clone()
    x[:, 2] += 1
    kept, dropped = (fit(tmp_path, moved(train=train), drop_query_constant=choice) for choice in (False, True))
    assert not torch.equal(kept(x, test.offsets), kept(test.x, test.offsets))
    assert torch.equal(dropped(x, test.offsets), dropped(test.x, test.offsets))


def test_without_a_ridge_a_singular_scatter_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"scatter of metric \d is singular: rank \d of 6 .* Raise ridge \(now 0.0\)"):
        fit(tmp_path, ridge=0.0, queries_per_metric=1)


@pytest.mark.parametrize(("change", "message"), [
    ({"kernel": "x"}, "unknown kernel='x': choose one of paper"),
    ({"weights": "x"}, "unknown weights"),
    ({"fallback": "x"}, "unknown fallback"),
    ({"mode": "x"}, "unknown mode"),
    ({"negatives": "x"}, "unknown negatives"),
    ({"tau": "x"}, "unknown tau='x': choose one of median, q95, max or a number"),
    ({"tau": 0.0}, "tau=0.0 must be positive"),
    ({"kernel": "localized", "nonneg": False}, "needs nonneg=true"),
    ({"weights": "amortized", "mode": "sgd"}, "mode=sgd needs scores linear"),
    ({"beta": 0.0}, "beta=0.0 .*must be positive"),
    ({"lr": -1.0}, "lr=-1.0 must be positive"),
])  # fmt: skip
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        LGMML(FEATURES, **change)


# ---- the compiled form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    {},
    {"kernel": "rbf", "anchor": "best"},
    {"weights": "per_query", "rounds": 3},
    {"rounds": 8, "lr": 0.5},
], ids=str)  # fmt: skip
def test_compiled(tmp_path, change):
    ranker, test = fit(tmp_path, **change), lists(2)
    rows, scores = ranker.transform(test.x, test.offsets), ranker(test.x, test.offsets)
    scorer = ranker.compiled()
    torch.testing.assert_close(scorer(rows), scores, rtol=1e-5, atol=1e-5)
    scorer.save(tmp_path / "scorer.pt")
    assert torch.equal(CompiledScorer.load(tmp_path / "scorer.pt")(rows), scorer(rows))
    torch.testing.assert_close(ranker.compiled(rank=FEATURES)(rows), scores, rtol=1e-4, atol=1e-4)
    errors = [(ranker.compiled(rank=k)(rows) - scores).abs().mean() for k in (1, 3, 6)]
    assert errors[2] < errors[1] < errors[0]
    assert len(ranker.compiled(tolerance=0.2).metrics.columns) <= len(scorer.metrics.columns)


def test_metrics_of_weight_0_are_not_compiled(tmp_path):
    ranker, test = fit(tmp_path), lists(2)
    for weights, left in (([0.0, 2.0, 0.0, 1.0], 2), ([0.0] * 4, 0)):
        ranker.weights.copy_(torch.tensor(weights))
        scorer = ranker.compiled()
        assert len(scorer.weights) == left
        torch.testing.assert_close(scorer(ranker.transform(test.x, test.offsets)), ranker(test.x, test.offsets))


@pytest.mark.parametrize("change", [{"kernel": "localized"}, WEIGHTS["amortized"], WEIGHTS["knn"]], ids=str)
def test_scores_without_a_compiled_form(tmp_path, change):
    with pytest.raises(ValueError, match="only distances from anchors"):
        fit(tmp_path, **change).compiled()


def test_empty_lists(tmp_path):
    for mode in WEIGHTS.values():
        ranker = fit(tmp_path, **mode)
        for offsets in ([0], [0, 0], [0, 0, 0]):
            assert ranker(torch.zeros(0, FEATURES), torch.tensor(offsets)).shape == (0,)


def test_a_copy_scores_in_another_dtype(tmp_path):
    for mode in WEIGHTS.values():
        ranker, test = fit(tmp_path, rounds=2, **mode), lists(2)
        wide = deepcopy(ranker).double()(test.x.double(), test.offsets)
        assert wide.dtype == torch.float64
        torch.testing.assert_close(ranker(test.x, test.offsets).double(), wide, rtol=1e-4, atol=1e-4)
