"""DominationRank as a ranker: exact zeros, paths, induction, margins.

Its minimum is compared with that of another solver in tests/golden/test_domination_rank.py.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.domination_fits import (
    TIGHT,
    WORDS,
    close,
    fit,
    reference,
    topic_data,
    topic_reference,
)
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank, RankingDataModule

# ---- zeros, paths, induction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"induction": 2}])
def test_from_the_largest_l1_on_all_weights_are_zero(tmp_path, options):
    largest = reference(lists(0)).lambda_max()
    for share, empty in ((1.0 + 1e-9, True), (3.0, True), (0.999, False)):
        ranker = fit(tmp_path / str(share), l1=share * largest, l2=0.0, **options)
        assert ranker.converged and bool((ranker.weight == 0).all()) == empty


@pytest.mark.parametrize("induction", [None, 1, 2])
def test_a_path_goes_from_zero_down_and_every_step_is_a_minimum(tmp_path, induction):
    steps = []

    class Steps(torchrank.DominationRank):
        def _report(self, objective, violation, weight):
            super()._report(objective, violation, weight)
            steps.append((objective, violation, weight[0].numpy().copy()))

    ranker = Steps(FEATURES, path=6, path_ratio=0.01, l2=0.2, induction=induction, **TIGHT)
    trainer(tmp_path, 6).fit(ranker, datamodule=data())
    plain = reference(lists(0), l2=0.2)
    largest = plain.lambda_max()
    assert len(steps) == 6 and ranker.converged
    for step, (objective, violation, w) in enumerate(steps):
        plain.l1 = largest * 0.01 ** (step / 5)
        best, _ = plain.minimum()
        assert objective == pytest.approx(plain(w), rel=1e-10) and plain(w) <= best * (1 + 1e-8)
        assert violation <= 1e-6 and plain.violation(w) < 2e-6
    counts = [np.count_nonzero(w) for *_, w in steps]
    assert counts[0] == 0 and counts[-1] >= 5 and counts == sorted(counts)


def test_validation_chooses_on_a_path(tmp_path):
    """The best checkpoint is the step with the best validation measure, and a path is not a certified fit."""
    module = topic_data()
    seen = []

    class Seen(torchrank.DominationRank):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            seen.append((self.measured["val"]["default"]["measures"]["map"], self.weight.clone()))

    ranker = Seen(WORDS, path=6, per_topic=True, l2=0.0, transform=None)
    assert not ranker.certified and DominationRank(WORDS).certified
    trainer(tmp_path, 6, monitor="val/map").fit(ranker, datamodule=module)
    values = [value for value, _ in seen]
    best = max(range(6), key=values.__getitem__)
    state = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    assert len(set(values)) > 2 and torch.equal(state["weight"], seen[best][1])


@pytest.mark.parametrize("induction", [None, 3])
def test_a_path_of_topics_starts_at_the_largest_l1_of_each(tmp_path, induction):
    weights = []

    class Steps(torchrank.DominationRank):
        def _report(self, objective, violation, weight):
            super()._report(objective, violation, weight)
            weights.append(weight.numpy().copy())

    ranker = Steps(WORDS, path=3, path_ratio=0.1, per_topic=True, l2=0.0, induction=induction, **TIGHT)
    trainer(tmp_path, 3, monitor="val/map").fit(ranker, datamodule=topic_data())
    assert (weights[0] == 0).all() and (weights[1][:3] != 0).any(1).all()
    for t in range(3):
        plain = topic_reference(t)
        plain.l1 = 0.1 * plain.lambda_max()
        assert plain.violation(weights[2][t]) < 2e-6
    assert (weights[2][3] == 0).all()  # one label only


@pytest.mark.parametrize("penalty", [{"l1": 0.3, "l2": 0.0}, {"l1": 0.3, "l2": 0.1}])
@pytest.mark.parametrize("per_topic", [False, True])
def test_induction_ends_at_the_minimum_over_all_features(tmp_path, penalty, per_topic):
    """Taking in few features at a time, and not all of them."""
    module = topic_data()
    ranker = fit(tmp_path / "induced", module, induction=3, per_topic=per_topic, **penalty)
    whole = fit(tmp_path / "whole", module, per_topic=per_topic, **penalty)
    assert ranker.converged and ranker.certificate["kkt"] <= 1e-6
    close(ranker, whole, atol=1e-4)
    assert torch.equal(ranker.weight != 0, whole.weight != 0)
    assert (ranker.chosen | (ranker.weight == 0)).all() and ranker.chosen.sum() < ranker.chosen.numel()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{"l1": 0.3}, {"path": 4, "path_ratio": 0.03}])
def test_induction_never_ends_above_its_tolerance(tmp_path, seed, options):
    """Also where no feature gains any more before those that were taken in are solved, but one does after."""
    module = RankingDataModule.from_sets(train=lists(seed, noise=2.0), val=lists(1))
    for count in (1, 2):
        ranker = fit(tmp_path / str(count), module, l2=0.0, induction=count, **options)
        plain = reference(lists(seed, noise=2.0))
        plain.l1 = options.get("l1", 0.03 * plain.lambda_max())
        assert ranker.converged and plain.violation(ranker.weight[0].numpy()) < 2e-6


def test_the_first_features_have_the_largest_sure_gains(tmp_path):
    """From the gradient at 0 and the range of each column, typed again."""
    train = lists(0)
    ranker = fit(tmp_path, l1=0.5, l2=0.1, induction=2, rounds=1)
    gradient, curvature = np.abs(reference(train).loss(np.zeros(FEATURES))[1]), np.zeros(FEATURES)
    for q in range(len(train)):
        x, y = train[q].x.numpy(), train[q].labels.numpy()
        curvature += (y > y.min()).sum() * (x.max(0) - x.min(0)) ** 2 / 4
    gains = np.maximum(gradient - 0.5, 0) ** 2 / (2 * (curvature + 0.2))
    assert set(ranker.chosen[0].nonzero().flatten().tolist()) == set(np.argsort(-gains)[:2].tolist())
    assert ranker.first_gain.item() == pytest.approx(gains.max(), rel=1e-6)


def test_a_tolerance_for_gains_ends_induction_with_l2(tmp_path):
    """Where no gain is ever 0: few features with a high threshold, more with a lower one; the rest is not proved."""
    counts = []
    for share in (0.3, 0.03, 1e-4):
        ranker = fit(tmp_path / str(share), topic_data(), l2=1.0, induction=1, gain_tolerance=share, tolerance=1e-5)
        counts.append(int(ranker.chosen.sum()))
        assert ranker.converged and torch.equal(ranker.weight != 0, ranker.chosen)
    assert 0 < counts[0] < counts[1] < counts[2]


def test_the_threshold_of_gains_is_that_of_each_topic(tmp_path):
    """The topics of one fit take in what they would by themselves."""
    options = {"l1": 0.1, "l2": 0.0, "induction": 1, "gain_tolerance": 0.1, "per_topic": True}
    together = fit(tmp_path / "all", topic_data(), **options)
    module = topic_data()
    for t in range(3):
        sets = {split: module.sets[split].subset(torch.tensor([t])) for split in module.sets}
        alone = fit(tmp_path / str(t), RankingDataModule.from_sets(**sets, measures=["map"]), **options)
        torch.testing.assert_close(together.first_gain[t], alone.first_gain[0])
        assert torch.equal(together.chosen[t], alone.chosen[0])


# ---- margins ------------------------------------------------------------------------------------------------------


def test_equal_margins_written_differently(tmp_path):
    matrix = [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [2.0, 1.5, 0.0]]
    for name, same in {"boundaries": ([0.5, 1.5], matrix), "number": (0.7, {"slope": 0.7, "offset": 0.0})}.items():
        one, other = (fit(tmp_path / f"{name}{i}", margin=margin) for i, margin in enumerate(same))
        close(one, other)


def test_a_margin_asks_for_longer_weights(tmp_path):
    norms = [float(fit(tmp_path / str(k), margin=k, l2=0.5).weight.norm()) for k in (0.0, 1.0, 3.0)]
    assert norms[0] < norms[1] < norms[2]


@pytest.mark.parametrize("solver", ["fista", "cd"])
@pytest.mark.parametrize("group", ["query", "pooled"])
def test_flat_grades_with_a_schedule_keep_the_margins_of_the_labels(tmp_path, solver, group):
    """Two layers, but a document of label 2 has to win by more than one of label 1: the formula typed again."""
    if solver == "cd" and group == "pooled":
        return
    margin, train = {"slope": 1.5, "offset": 0.5}, lists(0)
    options = {"grades": "flat", "l2": 30.0, "group": group, "solver": solver, "tolerance": 1e-4}
    ranker = fit(tmp_path, margin=margin, **options)
    x, y, w = train.x.double().numpy(), train.labels.numpy(), ranker.weight[0].numpy()
    s, gradient = np.where(y > 0, 1.5 * y + 0.5, 0.0), 60.0 * w
    bounds = train.offsets.tolist() if group == "query" else [0, len(y)]
    for a, b in pairwise(bounds):
        low = np.flatnonzero(y[a:b] == 0) + a
        for i in np.flatnonzero(y[a:b] > 0) + a:
            shares = np.exp(x[low] @ w - x[i] @ w + s[i])
            gradient = gradient + shares @ (x[low] - x[i]) / (1 + shares.sum())
    assert np.abs(gradient).max() < 2e-4
    other = fit(tmp_path / "one", margin=[2.0], **options)
    assert (other.weight - ranker.weight).abs().max() > 1e-3
