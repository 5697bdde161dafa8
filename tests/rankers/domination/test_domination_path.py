"""DominationRank with l1: exact zeros, paths, and features that induction adds."""

import numpy as np
import pytest
import torch

from tests.rankers.domination.fits import (
    SOLVERS,
    TIGHT,
    WORDS,
    close,
    corpus,
    fit,
    recorded,
    reference,
    topic_reference,
)
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank
from torchrank.functional import ndcg


@pytest.mark.parametrize("options", [{}, {"induction": 2}])
def test_from_the_largest_l1_on_all_weights_are_zero(options):
    largest = reference(lists(0)).lambda_max()
    for share, empty in ((1.0 + 1e-9, True), (3.0, True), (0.999, False)):
        ranker = fit(l1=share * largest, l2=0.0, **options)
        assert ranker.converged and bool((ranker.weight == 0).all()) == empty


@pytest.mark.parametrize("options", [{}, {"induction": 2}])
def test_a_relative_l1_is_a_share_of_the_largest(options):
    largest = reference(lists(0)).lambda_max()
    close(fit(l1=0.3, relative=True, l2=0.1, **options), fit(l1=0.3 * largest, l2=0.1, **options))


# ---- paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("induction", [None, 1, 2])
def test_a_path_goes_from_zero_down_and_every_step_is_a_minimum(induction):
    ranker = DominationRank(FEATURES, path=6, path_ratio=0.01, l2=0.2, induction=induction, **TIGHT)
    steps = recorded(ranker)
    ranker.fit(lists(0), batch_documents=40)
    plain = reference(lists(0), l2=0.2)
    largest = plain.lambda_max()
    assert len(steps) == 6 and ranker.converged
    for step, (objective, violation, (w,)) in enumerate(steps):
        plain.l1 = largest * 0.01 ** (step / 5)
        best, _ = plain.minimum()
        assert objective == pytest.approx(plain(w), rel=1e-10) and plain(w) <= best * (1 + 1e-8)
        assert violation <= 1e-6 and plain.violation(w) < 2e-6
    counts = [np.count_nonzero(w) for *_, w in steps]
    assert counts[0] == 0 and counts[-1] >= 5 and counts == sorted(counts)


def test_validation_chooses_on_a_path(tmp_path):
    """Through a trainer or without one the best step counts, and a path is not a certified fit."""
    options = {"path": 6, "l2": 0.0, "transform": None}
    assert not DominationRank(FEATURES, **options).certified and DominationRank(FEATURES).certified
    noisy, val = lists(0, noise=4.0), lists(1)
    ranker = DominationRank(FEATURES, **options)
    found = recorded(ranker)
    ranker.fit(noisy, val, batch_documents=40)
    steps = [torch.from_numpy(w) for *_, w in found]
    values = [float(ndcg((val.x.double() @ w[0]).float(), val.labels, val.offsets, k=10).nanmean()) for w in steps]
    best = max(range(6), key=values.__getitem__)
    assert len(steps) == 6 and len(set(values)) > 2 and best < 5 and torch.equal(ranker.weight, steps[best])
    module = data()
    module.sets["train"] = noisy
    trainer(tmp_path, 6).fit(DominationRank(FEATURES, **options), datamodule=module)
    assert torch.equal(torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]["weight"], steps[best])


@pytest.mark.parametrize("induction", [None, 3])
def test_a_path_of_topics_starts_at_the_largest_l1_of_each(induction):
    ranker = DominationRank(WORDS, path=3, path_ratio=0.1, per_topic=True, l2=0.0, induction=induction, **TIGHT)
    steps = recorded(ranker)
    ranker.fit(corpus("train"), batch_documents=100)
    weights = [w for *_, w in steps]
    assert (weights[0] == 0).all() and (weights[1][:3] != 0).any(1).all()
    for t in range(3):
        plain = topic_reference(t)
        plain.l1 = 0.1 * plain.lambda_max()
        assert plain.violation(weights[2][t]) < 2e-6
    assert (weights[2][3] == 0).all()  # one label only


def test_a_certified_path_warns_of_nothing(recwarn):
    fit(**SOLVERS["path"])
    assert not [found for found in recwarn if "certificate" in str(found.message) or "path" in str(found.message)]


def test_a_step_of_a_path_that_is_not_proved_says_so(monkeypatch):
    monkeypatch.setattr("torchrank.rankers.domination.ranker.PATH_ROUNDS", 1)
    with pytest.warns(
        UserWarning, match=r"this step of the path ended at a KKT violation of .*, above tolerance=1e-12"
    ):
        fit(**SOLVERS["path"] | {"path_ratio": 1e-4, "tolerance": 1e-12})


# ---- induction --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [{"l1": 0.3, "l2": 0.0}, {"l1": 0.3, "l2": 0.1}])
@pytest.mark.parametrize("per_topic", [False, True])
def test_induction_ends_at_the_minimum_over_all_features(penalty, per_topic):
    """Adding few features at a time, and not all of them."""
    ranker = fit(corpus("train"), batch_documents=100, induction=3, per_topic=per_topic, **penalty)
    whole = fit(corpus("train"), batch_documents=100, per_topic=per_topic, **penalty)
    assert ranker.converged and ranker.certificate.found <= 1e-6
    close(ranker, whole, atol=1e-4)
    assert torch.equal(ranker.weight != 0, whole.weight != 0)
    assert (ranker.chosen | (ranker.weight == 0)).all() and ranker.chosen.sum() < ranker.chosen.numel()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{"l1": 0.3}, {"path": 4, "path_ratio": 0.03}])
def test_induction_never_ends_above_its_tolerance(seed, options):
    """Also where no feature gains any more before those that were added are solved for, but one does after."""
    train = lists(seed, noise=2.0)
    for count in (1, 2):
        ranker = fit(train, l2=0.0, induction=count, **options)
        plain = reference(train)
        plain.l1 = options.get("l1", 0.03 * plain.lambda_max())
        assert ranker.converged and plain.violation(ranker.weight[0].numpy()) < 2e-6


def test_the_first_features_have_the_largest_sure_gains():
    """From the gradient at 0 and the range of each column, typed again."""
    train = lists(0)
    ranker = fit(l1=0.5, l2=0.1, induction=2, rounds=1)
    gradient, curvature = np.abs(reference(train).loss(np.zeros(FEATURES))[1]), np.zeros(FEATURES)
    for q in range(len(train)):
        x, y = train[q].x.numpy(), train[q].labels.numpy()
        curvature += (y > y.min()).sum() * (x.max(0) - x.min(0)) ** 2 / 4
    gains = np.maximum(gradient - 0.5, 0) ** 2 / (2 * (curvature + 0.2))
    assert set(ranker.chosen[0].nonzero().flatten().tolist()) == set(np.argsort(-gains)[:2].tolist())


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_topics_of_one_fit_add_the_features_that_they_would_alone(rounds):
    options = {"l1": 0.1, "l2": 0.0, "induction": 1, "per_topic": True, "rounds": rounds}
    together = fit(corpus("train"), **options)
    for t in range(3):
        alone = fit(corpus("train").subset(torch.tensor([t])), **options)
        assert torch.equal(together.chosen[t], alone.chosen[0]) and int(alone.chosen.sum()) == rounds
