"""DominationRank against scipy on the objective typed again over all pairs: its minimum, its certificate; options.

Paths and induction are in test_domination_path.py, coordinate descent in test_domination_descent.py.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.rankers.domination.fits import close, fit, reference, relabelled
from tests.rankers.small import FEATURES, lists
from tests.reference.domination import Objective, list_loss, margins_of
from torchrank import DominationRank, RankingSet
from torchrank.functional import ndcg
from torchrank.rankers.core.selection import keep_negatives
from torchrank.solvers.domination.penalised import Penalty

MATRIX = [[9.0, 9.0, 9.0], [0.4, 9.0, 9.0], [2.5, 1.0, 9.0]]  # of which the part below the diagonal counts
PENALTIES = {
    "l2": {"l1": 0.0, "l2": 1.0},
    "little l2": {"l1": 0.0, "l2": 0.01},
    "l1": {"l1": 3.0, "l2": 0.0},
    "both": {"l1": 1.0, "l2": 0.5},
}
NO_SIZES = (-1.0, math.nan, math.inf)


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


def solved(train=None, **options):
    ranker = fit(train, **{"tolerance": 1e-7, "rounds": 100} | options)
    assert ranker.converged
    return ranker


def check(ranker, plain):
    """The minimum of scipy to 1e-8, and the certificate that the ranker prints."""
    w = ranker.weight[0].numpy()
    best, point = plain.minimum()
    assert plain(w) == pytest.approx(best, rel=1e-8)
    assert plain.violation(w) < 2e-7
    assert ranker.certificate.found == pytest.approx(plain.violation(w), abs=1e-9)
    np.testing.assert_allclose(w, point, atol=2e-4)
    if plain.l1:
        assert np.array_equal(w == 0, np.abs(point) < 1e-6)  # exact zeros


# ---- the minimum ------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("solver", ["auto", "fista"])
def test_a_fit_is_the_minimum_under_every_penalty(penalty, solver):
    ranker = solved(solver=solver, **PENALTIES[penalty])
    check(ranker, reference(lists(0), **PENALTIES[penalty]))
    assert bool((ranker.weight == 0).any()) == (PENALTIES[penalty]["l1"] > 0)


@pytest.mark.parametrize("margin", [kind for kind in MARGINS if kind != "none"])
@pytest.mark.parametrize(("penalty", "pooled"), [("l2", False), ("l1", False), ("both", True)])
def test_a_fit_is_the_minimum_with_every_margin(margin, penalty, pooled):
    option, delta = MARGINS[margin]
    ranker = solved(margin=option, group="pooled" if pooled else "query", **PENALTIES[penalty])
    check(ranker, reference(lists(0), delta, pooled=pooled, **PENALTIES[penalty]))


@pytest.mark.parametrize(("penalty", "pooled"), [("l2", False), ("l1", False), ("l2", True)])
def test_a_fit_is_the_minimum_with_flat_grades(penalty, pooled):
    ranker = solved(grades="flat", group="pooled" if pooled else "query", **PENALTIES[penalty])
    check(ranker, reference(lists(0), flat=True, pooled=pooled, **PENALTIES[penalty]))


@pytest.mark.parametrize("solver", ["lbfgs", "fista"])
def test_pooled_lists_with_a_feature_that_is_the_same_within_each_list(solver):
    """It has no slope in any list, and one between them."""
    train = lists(0)
    x = train.x.clone()
    x[:, 2] = torch.repeat_interleave(torch.linspace(-1, 1, len(train)), train.offsets.diff())
    train = RankingSet(x, train.labels, train.offsets)
    ranker = solved(train, batch_documents=30, group="pooled", solver=solver, l2=0.5)
    check(ranker, reference(train, pooled=True, l2=0.5))
    assert ranker.weight[0, 2].abs() > 1e-3


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("grades", ["layered", "flat"])
def test_drawn_negatives_are_the_lists_that_are_learned_from(pooled, grades):
    """The lists that are drawn by hand, learned from as they are."""
    options = {"l1": 1.0, "l2": 0.1, "grades": grades, "group": "pooled" if pooled else "query"}
    ranker = solved(negatives=0.4, seed=3, **options)
    whole = lists(0)[:]
    if grades == "flat":
        whole = whole._replace(labels=(whole.labels > 0).float())
    drawn = keep_negatives(whole, 0.4, 3, lowest=0.0 if pooled else None)
    assert len(drawn.labels) < 0.8 * len(whole.labels)
    offsets = [0, len(drawn.labels)] if pooled else drawn.offsets
    check(ranker, Objective(drawn.x, drawn.labels, offsets, 1.0, 0.1))


def test_a_fit_is_the_minimum_with_real_labels():
    noise = torch.randn(len(lists(0).labels), generator=torch.Generator().manual_seed(1))
    train = relabelled(lists(0), (lists(0).labels + 0.3 * noise).round(decimals=1) + 2)
    check(solved(train, batch_documents=30, l1=1.0, l2=0.0), reference(train, l1=1.0))


def test_features_in_different_units():
    """The same minimum where columns differ by 10^4: FISTA looks at them in the units of their curvature."""
    train = RankingSet(lists(0).x * torch.logspace(-2, 2, FEATURES), lists(0).labels, lists(0).offsets)
    for solver, penalty in (("fista", {"l1": 0.5, "l2": 0.0}), ("lbfgs", {"l2": 1e-3}), ("fista", {"l2": 1e-3})):
        ranker = solved(train, solver=solver, tolerance=1e-5, rounds=300, **penalty)
        plain = reference(train, **penalty)
        assert plain(ranker.weight[0].numpy()) <= plain.minimum()[0] * (1 + 1e-8)
        assert plain.violation(ranker.weight[0].numpy()) < 1.1e-5


def test_it_learns():
    """With the standard transform."""
    ranker = fit(transform="standard", l2=1.0, tolerance=1e-3)
    test = lists(2)
    scores = ranker(test.x, test.offsets)
    by_chance = ndcg(torch.zeros_like(scores), test.labels, test.offsets, k=10, ties="average").nanmean()
    assert ndcg(scores, test.labels, test.offsets, k=10).nanmean() > by_chance + 0.2
    truth = torch.tensor([0, 1, 0, -0.5, 0, 0]).double()
    assert torch.nn.functional.cosine_similarity(ranker.weight[0], truth, dim=0) > 0.9


@pytest.mark.parametrize(
    "options", [{}, {"l1": 1.0}, {"group": "pooled"}, {"l1": 1.0, "induction": 2}, {"path": 3}, {"l2": 0.0}]
)
def test_lists_of_one_grade_teach_nothing(options):
    ranker = fit(relabelled(lists(0), torch.ones(len(lists(0).labels))), **options)
    assert ranker.converged and (ranker.weight == 0).all() and ranker.certificate.found == 0


# ---- margins ----------------------------------------------------------------------------------------------------


def test_equal_margins_written_differently():
    matrix = [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [2.0, 1.5, 0.0]]
    for one, other in (([0.5, 1.5], matrix), (0.7, {"slope": 0.7, "offset": 0.0})):
        close(fit(margin=one), fit(margin=other))


def test_a_margin_asks_for_longer_weights():
    norms = [float(fit(margin=k, l2=0.5).weight.norm()) for k in (0.0, 1.0, 3.0)]
    assert norms[0] < norms[1] < norms[2]


@pytest.mark.parametrize(("solver", "group"), [("fista", "query"), ("fista", "pooled"), ("cd", "query")])
def test_flat_grades_with_a_schedule_keep_the_margins_of_the_labels(solver, group):
    """Two layers, but a document of label 2 must win by more than one of label 1: the formula typed again."""
    margin, train = {"slope": 1.5, "offset": 0.5}, lists(0)
    options = {"grades": "flat", "l2": 30.0, "group": group, "solver": solver, "tolerance": 1e-4}
    ranker = fit(margin=margin, **options)
    x, y, w = train.x.double().numpy(), train.labels.numpy(), ranker.weight[0].numpy()
    s, gradient = np.where(y > 0, 1.5 * y + 0.5, 0.0), 60.0 * w
    bounds = train.offsets.tolist() if group == "query" else [0, len(y)]
    for a, b in pairwise(bounds):
        low = np.flatnonzero(y[a:b] == 0) + a
        for i in np.flatnonzero(y[a:b] > 0) + a:
            shares = np.exp(x[low] @ w - x[i] @ w + s[i])
            gradient = gradient + shares @ (x[low] - x[i]) / (1 + shares.sum())
    assert np.abs(gradient).max() < 2e-4
    other = fit(margin=[2.0], **options)
    assert (other.weight - ranker.weight).abs().max() > 1e-3


def test_margins_for_fewer_grades_are_refused():
    for margin in ([1.0], [[0.0, 0.0], [1.0, 0.0]]):
        with pytest.raises(ValueError, match=r"covers the grades 0\.\.1, but the training labels are grades 0\.\.2"):
            fit(margin=margin)
        assert fit(margin=margin, grades="flat").converged


# ---- certificates and refusals ----------------------------------------------------------------------------------


def test_a_fit_that_ends_early_says_so():
    with pytest.warns(UserWarning, match="stopped before its certificate: kkt .* Raise rounds"):
        ranker = fit(l1=0.1, l2=0.0, tolerance=1e-12, rounds=1)
    assert not ranker.converged and ranker.certificate.found > 1e-12 and not ranker.certificate.proved
    expected = reference(lists(0), l1=0.1).violation(ranker.weight[0].numpy())
    assert ranker.certificate[:3] == ("kkt", pytest.approx(expected, abs=1e-9), 1e-12)
    assert ranker.density() == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"solver": "newton"}, "unknown solver='newton': choose one of auto, lbfgs, fista, cd, blocked"),
        ({"grades": "three"}, "unknown grades='three': choose one of layered, flat"),
        ({"group": "list"}, "unknown group='list': choose one of query, pooled"),
        *(({name: value}, f"{name} must be .*>= 0, got {value}") for value in NO_SIZES for name in ("l1", "l2")),
        *(({"tolerance": value}, f"tolerance must be .*> 0, got {value}") for value in (0.0, *NO_SIZES)),
        *(({"negatives": value}, "negatives must be .*> 0 and <= 1") for value in (0.0, 1.5, math.nan)),
        *(({"path": 3, "path_ratio": value}, "path_ratio must be .*> 0 and < 1") for value in (0.0, 1.5, math.nan)),
        ({"margin": {"slop": 2.0}}, "unknown margin key 'slop'"),
        ({"margin": -1.0}, "margin must be a finite number >= 0, got -1.0"),
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"solver": "lbfgs", "l1": 1.0}, "solver=lbfgs needs a smooth objective: use solver=fista"),
        ({"solver": "lbfgs", "path": 3}, "solver=lbfgs needs a smooth objective: use solver=fista"),
        ({"group": "pooled", "per_topic": True}, "choose one"),
        ({"solver": "cd", "group": "pooled"}, "solver=cd sums over lists, but group=pooled is a single list"),
        ({"solver": "blocked", "block": 0}, "block must be >= 1, got 0"),
        ({"induction": 0}, "induction must be >= 1, got 0"),
        ({"path": 0}, "path must be >= 1, got 0"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        DominationRank(FEATURES, **given)


@pytest.mark.parametrize(("objective", "violation"), [(math.nan, 0.0), (math.inf, 0.0), (1.0, math.nan)])
def test_a_fit_that_overflows_says_so(objective, violation):
    ranker = DominationRank(FEATURES)
    with pytest.raises(ValueError, match=f"objective is {objective} and its violation {violation}: .* too large, use"):
        gradient = torch.full_like(ranker.weight, violation)
        ranker._report(torch.tensor(objective), gradient, Penalty(0.0, 0.0), ranker.weight)
