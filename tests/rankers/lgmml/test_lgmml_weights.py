"""The weights of L-GMML: rounds of WARP, and the weights of lists that were not trained on."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import (
    WEIGHTS,
    close,
    compare,
    fitted,
    graded,
    judged,
    rows_of,
    scores_of,
    split,
    state,
    write,
)
from tests.rankers.small import lists
from tests.reference import local_metrics as plain
from torchrank import RankingSet
from torchrank.data.training import TrainingLists
from torchrank.rankers.lgmml.sampled_warp import sampled_warp

MODES = [
    *WEIGHTS.values(),
    {"weights": "shared", "mode": "sgd"},
    {"weights": "per_query", "mode": "sgd"},
]


# ---- WARP rounds -----------------------------------------------------------------------------------------------------


def rounds_of(**options):
    """Fits that are cut after each round."""
    return [fitted(epochs=number, **options) for number in range(1, options["rounds"] + 1)]


def mean_loss(ranker):
    """Mean over the lists with different labels of the WARP loss, from scores typed again."""
    train, losses = lists(0), []
    rows, labels = split(rows_of(train), train.offsets), split(train.labels.tolist(), train.offsets)
    local, weights = state(ranker, train), np.broadcast_to(ranker.weights.numpy(), (len(train), 4))
    for own, grades, mine in zip(rows, labels, weights, strict=True):
        if len(set(grades)) > 1:
            scores = plain.scores(local, own, [0, len(own)], mine) * float(ranker.scale)
            losses.append(plain.warp_loss(scores.tolist(), grades))
    return np.mean(losses)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
def test_full_rounds_lower_the_mean_loss(weights):
    first, *rounds = rounds_of(wide=True, weights=weights, rounds=5, lr=0.2)
    assert (first.weights == 1).all()  # the first round ends with all weights 1
    write(first.scale, rounds[0].scale)
    losses = [mean_loss(ranker) for ranker in (first, *rounds)]
    assert all(after < before for before, after in pairwise(losses))
    for before, after in pairwise(ranker.weights for ranker in (first, *rounds)):
        assert (after >= 0).all() and (after - before).abs().max() <= 0.2 * before.max() * (1 + 1e-12)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
@pytest.mark.parametrize("options", [{}, {"kernel": "rbf", "negatives": "zero"}, {"kernel": "paper", "margin": 0.5}],
                         ids=str)  # fmt: skip
def test_the_second_round_goes_down_the_gradient(options, weights):
    """Of the mean of eq. 17 over the lists, on columns of Phi scaled together to a mean deviation of 1."""
    train = graded(55)
    first, second = (
        fitted(train, epochs=epochs, rounds=3, nonneg=False, lr=0.01, weights=weights, **options) for epochs in (1, 2)
    )
    local = state(first, train)
    phi = plain.KERNELS[options.get("kernel", "distance")](plain.distances(local, rows_of(train)) / local.tau, 2.0)
    deviation = phi.std(0).mean()
    assert float(second.scale) == pytest.approx(1 / deviation, rel=1e-5)
    slopes = {name: value for name, value in options.items() if name != "kernel"}
    downhill = -np.array(
        [
            plain.warp_slope(own, labels, **slopes)
            for own, labels in zip(
                split(phi / deviation, train.offsets), split(train.labels.tolist(), train.offsets), strict=True
            )
        ]
    )
    downhill = downhill.sum(0) if weights == "shared" else downhill
    moved = (second.weights - first.weights).double().numpy()
    close(moved / np.linalg.norm(moved), downhill / np.linalg.norm(downhill), 1e-3)


def test_only_lists_with_different_labels_move_their_row():
    ranker, train = fitted(weights="per_query", rounds=4), lists(0)
    still = (ranker.weights == 1).all(1).numpy()
    assert still[train.pairs == 0].all() and not still.all() and ranker.weights.shape == (12, 4)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
def test_weights_stay_nonnegative_only_if_asked(weights):
    """With steps that are far too large."""
    options = {"queries_per_metric": 1, "rounds": 6, "kernel": "rbf", "weights": weights, "lr": 0.99}
    assert float(fitted(graded(56), **options).weights.min()) == 0
    assert float(fitted(graded(56), nonneg=False, **options).weights.min()) < 0


@pytest.mark.parametrize("weights", ["shared", "per_query"])
@pytest.mark.parametrize("nonneg", [True, False])
def test_sampled_rounds(monkeypatch, weights, nonneg):
    change = {"kernel": "demo", "tau": "max", "weights": weights, "nonneg": nonneg}  # nearer is worse: weights fall
    first, second = (fitted(mode="sgd", rounds=5, lr=6.0, epochs=epochs, **change) for epochs in (1, 2))
    assert (first.weights == 1).all() and not (second.weights == 1).all()
    steps = []

    def recorded(*given, lr, **options):
        steps.extend(lr.tolist())
        return sampled_warp(*given, lr=lr, **options)

    monkeypatch.setattr("torchrank.rankers.lgmml.ranker.sampled_warp", recorded)
    ranker = fitted(mode="sgd", rounds=5, lr=6.0, **change)
    assert bool((ranker.weights >= 0).all()) == nonneg
    lists_of_round = int((lists(0).pairs > 0).sum())
    assert len(steps) == 4 * lists_of_round  # one for each list with different labels
    for number, step in enumerate(steps):
        decay = 1 - number // lists_of_round / 4
        assert step == pytest.approx(6 * decay / (lists_of_round if weights == "shared" else 1), rel=1e-6)


def test_sampled_rounds_refuse_several_processes():
    ranker = fitted(mode="sgd", rounds=2)
    two = TrainingLists(lists(0).to("cpu", ranker.transform), world=2, reduce=lambda tensor: tensor)
    with pytest.raises(ValueError, match=r"mode=sgd .* in one process, got 2: use mode=full on several"):
        ranker.open(two)


def test_sampled_rounds_need_scores_linear_in_the_weights():
    with pytest.raises(ValueError, match="mode=sgd needs scores linear in the weights"):
        fitted(mode="sgd", kernel="localized", rounds=2)
    ranker = fitted(judged(0), mode="sgd", kernel="localized", rounds=3, anchor="best")  # linear with queries
    assert (ranker.weights != 1).any() and (ranker.weights >= 0).all()


def test_perfectly_ranked_lists_end_the_fit():
    train = lists(0)
    relevant = train.x[:, 0] > 0
    x = train.x.clone()
    x[:, 0] += torch.where(relevant, 50.0, -50.0)
    ranker = fitted(RankingSet(x, relevant.float(), train.offsets), rounds=20, margin=1e-6, kappa=30.0)
    assert ranker.converged and (ranker.weights == 1).all()


# ---- weights of lists that were not trained on -----------------------------------------------------------------------


@pytest.mark.parametrize("fallback", ["mean", "ones", "knn"])
@pytest.mark.parametrize("kernel", ["distance", "rbf", "localized"])
def test_fallbacks(kernel, fallback):
    """Rows of weights written by hand; unseen lists get their mean, ones, or the mean of the ten nearest rows."""
    train, test = graded(31, 25), graded(32)
    ranker = fitted(train, weights="per_query", fallback=fallback, kernel=kernel)
    assert ranker.weights.shape == (len(train), 4)
    write(ranker.weights, torch.rand(ranker.weights.shape, generator=torch.Generator().manual_seed(1)) * 2)
    weights, known = ranker.weights.double().numpy(), split(rows_of(train), train.offsets)
    expected = {
        "mean": lambda rows: weights.mean(0),
        "ones": lambda rows: np.ones(4),
        "knn": lambda rows: plain.nearest_rows(known, rows, weights),
    }[fallback]
    unseen = np.array([expected(rows) for rows in split(rows_of(train, test), test.offsets)])
    compare(ranker, train, test, rows_of_weights=unseen, kernel=kernel)


def test_amortized_weights_are_softplus_of_a_linear_function_of_the_unlabelled_list():
    train, test = lists(0), lists(2)
    ranker = fitted(train, rounds=4, wide=True, weights="amortized")
    local, values = state(ranker, train), ranker.weights.numpy()
    assert (values[:, 1:] != 0).any()
    expected = []
    for rows in split(rows_of(train, test), test.offsets):
        phi = -plain.distances(local, rows) / local.tau
        weights = np.log1p(np.exp(values @ np.concatenate(([1.0], phi.mean(0), rows.mean(0)))))
        expected.append(plain.scores(local, rows, [0, len(rows)], weights))
    np.testing.assert_allclose(scores_of(ranker, test), np.concatenate(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "ones", "knn"])
def test_rows_of_training_queries_are_used_only_where_asked_for(mode):
    ranker, train = fitted(rounds=4, **WEIGHTS[mode]), lists(0)
    query = torch.arange(12)
    learned = ranker.training_scores(train.x, train.offsets, query)
    assert not np.allclose(learned, scores_of(ranker, train))
    expected = plain.scores(state(ranker, train), rows_of(train), train.offsets, ranker.weights.numpy())
    np.testing.assert_allclose(learned, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(ranker.training_scores(train.x, train.offsets, query.flip(0)), learned)


@pytest.mark.parametrize("mode", WEIGHTS)
def test_the_position_of_a_list_is_no_key_to_a_training_row(mode):
    """The same candidates score the same whatever their `query` says, the training lists themselves included."""
    train, test = graded(33), graded(34)
    ranker = fitted(train, rounds=3, **WEIGHTS[mode])
    for some in (test, train):
        base = scores_of(ranker, some)
        for query in (torch.zeros(len(some), dtype=torch.int64), torch.arange(len(some)).flip(0)):
            np.testing.assert_array_equal(scores_of(ranker, some, query=query), base)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_labels_of_test_lists_reach_no_score(options):
    """Shuffled or reversed test labels change not a bit of a score, whichever step computes it."""
    ranker, test = fitted(graded(29), rounds=3, kernel="rbf", **options), graded(30)
    ready = test.to("cpu", ranker.transform)
    mixed = test.labels[torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))]
    for labels in (test.labels, mixed, 4 - test.labels):
        batch = RankingSet(ready.x, labels, test.offsets)[:]
        for step in (ranker.validation_step, ranker.test_step, ranker.predict_step):
            np.testing.assert_array_equal(step(batch).double(), scores_of(ranker, test))


@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_rounds_do_change_the_scores(options):
    """The counterpart: the weights that the later rounds learn reach the scores, so the test above proves something."""
    one, three = (scores_of(fitted(graded(29), rounds=n, kernel="rbf", **options), graded(30)) for n in (1, 3))
    assert np.array_equal(one, three) == (options.get("fallback") == "ones")
