"""DominationRank against scipy on the objective typed again over all pairs: its minimum, its certificate by hand."""

import numpy as np
import pytest
import torch

from tests.golden.domination_reference import Objective, list_loss, margins_of
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank, RankingDataModule
from torchrank.solvers.narrowing import keep_negatives

MATRIX = [[9.0, 9.0, 9.0], [0.4, 9.0, 9.0], [2.5, 1.0, 9.0]]  # of which the part below the diagonal counts
PENALTIES = {
    "l2": {"l1": 0.0, "l2": 1.0},
    "little l2": {"l1": 0.0, "l2": 0.01},
    "l1": {"l1": 3.0, "l2": 0.0},
    "both": {"l1": 1.0, "l2": 0.5},
}


def schedule(y, slope, offset, log=False):
    return max(0.0, slope * (np.log(y) if log else y) + offset) if y > 0 else 0.0


def separable(**options):
    return lambda a, b: schedule(a, **options) - schedule(b, **options)


MARGINS = {  # the option, and delta(y_i, y_j)
    "none": (None, None),
    "number": (0.7, lambda a, b: 0.7 * (a - b)),
    "line": ({"slope": 0.5, "offset": 0.3}, separable(slope=0.5, offset=0.3)),
    "logarithm": ({"slope": 1.0, "offset": 2.7, "log": True}, separable(slope=1.0, offset=2.7, log=True)),
    "boundaries": ([0.5, 1.5], lambda a, b: sum([0.5, 1.5][int(b) : int(a)])),
    "matrix": (MATRIX, lambda a, b: MATRIX[int(a)][int(b)]),
}


def fit(folder, module=None, **options):
    ranker = DominationRank(FEATURES, **{"transform": None, "tolerance": 1e-7, "rounds": 100} | options)
    trainer(folder, ranker.rounds).fit(ranker, datamodule=module or data())
    assert ranker.converged
    return ranker


def check(ranker, reference):
    """The minimum of scipy to 1e-8, and the certificate that the ranker prints."""
    w = ranker.weight[0].numpy()
    best, point = reference.minimum()
    assert reference(w) == pytest.approx(best, rel=1e-8)
    assert reference.violation(w) < 2e-7
    assert ranker.certificate["kkt"] == pytest.approx(reference.violation(w), abs=1e-9)
    np.testing.assert_allclose(w, point, atol=2e-4)
    if reference.l1:
        assert np.array_equal(w == 0, np.abs(point) < 1e-6)  # exact zeros


def reference_of(ranking_set, delta=None, flat=False, pooled=False, **penalty):
    labels = (ranking_set.labels > 0).float() if flat else ranking_set.labels
    offsets = [0, len(labels)] if pooled else ranking_set.offsets
    return Objective(ranking_set.x, labels, offsets, delta=delta, **penalty)


@pytest.mark.parametrize("margin", MARGINS)
def test_the_reference_itself(margin):
    """Against a double loop without tricks, and by differences."""
    random = np.random.default_rng(0)
    scores, labels, delta = random.normal(size=9), random.integers(0, 3, 9).astype(float), MARGINS[margin][1]
    expected = sum(
        np.log(1 + sum(np.exp(f - g + (delta(y, z) if delta else 0)) for f, z in zip(scores, labels) if z < y))  # noqa: B905
        for g, y in zip(scores, labels)  # noqa: B905
    )
    margins = margins_of(labels, delta)
    value, slopes = list_loss(scores, labels, margins)
    assert value == pytest.approx(expected, rel=1e-13)
    moved = [[list_loss(scores + sign * e, labels, margins)[0] for sign in (1, -1)] for e in 1e-5 * np.eye(9)]
    np.testing.assert_allclose(slopes, [(up - down) / 2e-5 for up, down in moved], atol=1e-8)
    if delta is None:
        below = np.array([sum(labels < y) for y in labels])
        assert list_loss(0 * scores, labels, margins)[0] == pytest.approx(np.log(1 + below).sum())


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("solver", "bound"), [("auto", "range"), ("fista", "range"), ("fista", "square")])
def test_penalties(tmp_path, penalty, solver, bound):
    ranker = fit(tmp_path, solver=solver, bound=bound, **PENALTIES[penalty])
    check(ranker, reference_of(lists(0), **PENALTIES[penalty]))
    assert bool((ranker.weight == 0).any()) == (PENALTIES[penalty]["l1"] > 0)


@pytest.mark.parametrize("margin", [kind for kind in MARGINS if kind != "none"])
@pytest.mark.parametrize(("penalty", "pooled"), [("l2", False), ("l1", False), ("both", True)])
def test_margins(tmp_path, margin, penalty, pooled):
    option, delta = MARGINS[margin]
    ranker = fit(tmp_path, margin=option, group="pooled" if pooled else "query", **PENALTIES[penalty])
    check(ranker, reference_of(lists(0), delta, pooled=pooled, **PENALTIES[penalty]))


@pytest.mark.parametrize(("penalty", "pooled"), [("l2", False), ("l1", False), ("l2", True)])
def test_flat_grades(tmp_path, penalty, pooled):
    ranker = fit(tmp_path, grades="flat", group="pooled" if pooled else "query", **PENALTIES[penalty])
    check(ranker, reference_of(lists(0), flat=True, pooled=pooled, **PENALTIES[penalty]))


@pytest.mark.parametrize("solver", ["lbfgs", "fista"])
def test_pooled_lists_with_a_feature_that_is_the_same_within_each_list(tmp_path, solver):
    """It has no slope in any list, and one between them."""
    train = lists(0)
    train.x[:, 2] = torch.repeat_interleave(torch.linspace(-1, 1, len(train)), train.offsets.diff())
    module = RankingDataModule.from_sets(train=train, val=lists(1), batch_documents=30)
    ranker = fit(tmp_path, module, group="pooled", solver=solver, l2=0.5)
    check(ranker, reference_of(train, pooled=True, l2=0.5))
    assert ranker.weight[0, 2].abs() > 1e-3


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("grades", ["layered", "flat"])
def test_drawn_negatives(tmp_path, pooled, grades):
    """The lists that are drawn by hand, learned from as they are."""
    options = {"l1": 1.0, "l2": 0.1, "grades": grades, "group": "pooled" if pooled else "query"}
    ranker = fit(tmp_path, negatives=0.4, seed=3, **options)
    whole = lists(0)[:]
    if grades == "flat":
        whole = whole._replace(labels=(whole.labels > 0).float())
    drawn = keep_negatives(whole, 0.4, 3, lowest=0.0 if pooled else None)
    assert len(drawn.labels) < 0.8 * len(whole.labels)
    offsets = [0, len(drawn.labels)] if pooled else drawn.offsets
    check(ranker, Objective(drawn.x, drawn.labels, offsets, 1.0, 0.1))


def test_real_labels(tmp_path):
    train = lists(0)
    noise = torch.randn(len(train.labels), generator=torch.Generator().manual_seed(1))
    train.labels.copy_((train.labels + 0.3 * noise).round(decimals=1))
    module = RankingDataModule.from_sets(train=train, val=lists(1), batch_documents=30)
    ranker = fit(tmp_path, module, l1=1.0, l2=0.0)
    check(ranker, reference_of(train, l1=1.0))


def test_features_in_different_units(tmp_path):
    """The same minimum where columns differ by 10^4: FISTA looks at them in the units of their curvature."""
    train = lists(0)
    train.x *= torch.logspace(-2, 2, FEATURES)
    module = RankingDataModule.from_sets(train=train, val=lists(1))
    for solver, penalty in (("fista", {"l1": 0.5, "l2": 0.0}), ("lbfgs", {"l2": 1e-3}), ("fista", {"l2": 1e-3})):
        ranker = fit(tmp_path, module, solver=solver, tolerance=1e-5, rounds=300, **penalty)
        reference = reference_of(train, **penalty)
        assert reference(ranker.weight[0].numpy()) <= reference.minimum()[0] * (1 + 1e-8)
        assert reference.violation(ranker.weight[0].numpy()) < 1.1e-5
