"""The weights of L-GMML: rounds of WARP, queries that were not trained on, and what a score difference is made of."""

import numpy as np
import pytest
import torch

from torchrank import LGMML, RankingSet

from . import local_reference as plain
from .local_fits import FEATURES, close, compare, first_round, graded, live, rows_of, run, scores_of, state, write
from .reference import blocks

pytestmark = pytest.mark.filterwarnings("ignore:Total length of")  # there are no validation lists


# --- a round of WARP ---


@pytest.mark.parametrize("weights", ["shared", "per_query"])
@pytest.mark.parametrize("options", [{}, {"kernel": "rbf", "negatives": "zero"}, {"kernel": "paper", "margin": 0.5}],
                         ids=str)  # fmt: skip
def test_second_round_goes_down_the_gradient(options, weights):
    """Of the mean of eq. 17 over the lists, on columns of Phi scaled together to a mean deviation of 1."""
    train = graded(55)
    first = first_round(train, weights=weights, **options)
    settings = {"metrics": 4, "queries_per_metric": 3, "rounds": 3, "nonneg": False, "lr": 0.01, "weights": weights}
    second = run(LGMML(FEATURES, **settings | options), train, 2)
    local = state(first, train)
    z = plain.distances(local, rows_of(train), "mahalanobis") / local.tau
    phi = np.vectorize(lambda value: plain.kernel_value(value, options.get("kernel", "distance"), 2.0))(z)
    phi /= phi.std(0).mean()
    slopes = {name: value for name, value in options.items() if name != "kernel"}
    downhill = np.zeros((len(train), 4))
    for q, block in enumerate(blocks(train.offsets)):
        downhill[q] = -plain.warp_slope(phi[block], train.labels[block].tolist(), **slopes)
    downhill = downhill.sum(0) if weights == "shared" else downhill
    moved = (second.weights - first.weights).detach().double().numpy()
    close(moved / np.linalg.norm(moved), downhill / np.linalg.norm(downhill), 1e-3)


@pytest.mark.parametrize("mode", ["full", "sgd"])
@pytest.mark.parametrize("weights", ["shared", "per_query"])
def test_weights_stay_nonnegative(weights, mode):
    """With steps that are far too large; `full` steps then do make a weight negative where that is allowed."""
    train = graded(56)
    options = {"metrics": 4, "queries_per_metric": 1, "rounds": 12, "kernel": "rbf"}
    options |= {"weights": weights, "mode": mode, "lr": 5.0 if mode == "sgd" else 0.99}
    assert float(run(LGMML(FEATURES, **options), train, 12).weights.min()) >= 0
    if mode == "full":
        assert float(run(LGMML(FEATURES, nonneg=False, **options), train, 12).weights.min()) < 0


# --- weights of unseen queries ---

MODES = [
    {"weights": "shared"},
    {"weights": "shared", "mode": "sgd"},
    {"weights": "per_query", "fallback": "mean"},
    {"weights": "per_query", "fallback": "ones"},
    {"weights": "per_query", "fallback": "knn"},
    {"weights": "per_query", "fallback": "mean", "mode": "sgd"},
    {"weights": "amortized"},
]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_labels_of_test_lists_reach_no_score(options):
    """The whole run again with the test labels shuffled or reversed: not a bit of a score changes."""
    train, test = graded(29), graded(30)
    found = []
    for labels in (test.labels, test.labels[torch.randperm(len(test.labels))], 4 - test.labels):
        ranker = LGMML(FEATURES, metrics=4, queries_per_metric=3, rounds=3, kernel="rbf", **options)
        found.append(run(ranker, train, 3, RankingSet(test.x, labels, test.offsets)))
        np.testing.assert_allclose(found[-1].double().numpy(), scores_of(ranker, test), rtol=1e-6, atol=1e-6)
    assert len(found[0]) == len(test.labels)
    for other in found[1:]:
        assert torch.equal(other, found[0])


@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_rounds_do_change_the_scores(options):
    """The counterpart: the weights that the later rounds learn reach the scores, so the test above proves something."""
    train, test = graded(29), graded(30)
    found = []
    for epochs in (1, 3):
        ranker = LGMML(FEATURES, metrics=4, queries_per_metric=3, rounds=epochs, kernel="rbf", **options)
        found.append(run(ranker, train, epochs, test))
    if options.get("fallback") == "ones":
        assert torch.equal(*found)
    else:
        assert not torch.equal(*found)


@pytest.mark.parametrize("fallback", ["mean", "ones", "knn"])
@pytest.mark.parametrize("kernel", ["distance", "rbf", "localized"])
def test_fallbacks(kernel, fallback):
    """Rows of weights written by hand; unseen lists get their mean, ones, or the mean of the ten nearest rows."""
    train, test = graded(31, 25), graded(32)
    ranker = first_round(train, weights="per_query", fallback=fallback, kernel=kernel)
    assert ranker.weights.shape == (len(train), 4)
    rows = torch.rand(ranker.weights.shape, generator=torch.Generator().manual_seed(1)) * 2
    write(ranker.weights, rows)
    weights, own = ranker.weights.detach().double().numpy(), rows_of(train)
    training_lists = [own[block] for block in blocks(train.offsets)]
    unseen = [rows_of(train, test)[block] for block in blocks(test.offsets)]
    expected = {
        "mean": lambda: np.tile(weights.mean(0), (len(test), 1)),
        "ones": lambda: np.ones((len(test), 4)),
        "knn": lambda: np.array([plain.nearest_rows(training_lists, rows, weights) for rows in unseen]),
    }[fallback]()
    compare(ranker, train, test, rows_of_weights=expected, kernel=kernel)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_position_of_a_list_is_no_key_to_a_training_row(options):
    """The same candidates score the same whatever their `query` says, the training lists themselves included."""
    train, test = graded(33), graded(34)
    ranker = first_round(train, **options)
    if options["weights"] == "per_query":
        write(ranker.weights, torch.rand(ranker.weights.shape, generator=torch.Generator().manual_seed(2)))
    for lists in (test, train):
        base = scores_of(ranker, lists)
        for query in (torch.zeros(len(lists), dtype=torch.int64), torch.arange(len(lists)).flip(0)):
            np.testing.assert_array_equal(scores_of(ranker, lists, query=query), base)


# --- explanation ---


@pytest.mark.parametrize("kernel", ["distance", "paper", "demo", "rbf", "laplace"])
@pytest.mark.parametrize("options", [{}, {"anchor": "best"}, {"distance": "eq12"}], ids=str)
def test_explanation(options, kernel):
    """Per metric and feature, split as the squared distances are; adds up to the difference of the scores to 1e-10."""
    train, test = graded(35, top=3), graded(36)
    ranker = first_round(train, kernel=kernel, **options).double()
    write(ranker.weights, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    x = test.x.double()
    rng = np.random.default_rng(37)
    pairs = np.array([rng.choice(np.arange(block.start, block.stop), 2) for block in blocks(test.offsets)])
    pairs[0] = pairs[0, 0]  # a document against itself
    with torch.no_grad():
        parts = ranker.explain(x, test.offsets, torch.tensor(pairs)).numpy()
        scores = ranker(x, test.offsets).numpy()
    assert np.abs(parts.sum((1, 2)) - (scores[pairs[:, 0]] - scores[pairs[:, 1]])).max() <= 1e-10
    local, rows = state(ranker, train), standard_rows(train, x)
    keep = live(train) if parts.shape[2] != len(live(train)) else slice(None)
    for (a, b), found in zip(pairs, parts, strict=True):
        expected = plain.explanation(local, rows[a], rows[b], ranker.weights.numpy(), kernel, 2.0)
        np.testing.assert_allclose(found[:, keep], expected, rtol=1e-6, atol=1e-9)


def standard_rows(train, x: torch.Tensor) -> np.ndarray:
    """Live features of rows that stay in float64."""
    own = train.x.double().numpy()
    deviation = own.std(0)
    scaled = (x.numpy() - own.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return np.clip(scaled, -8, 8)[:, live(train)]


@pytest.mark.parametrize("options", [{"weights": "per_query"}, {"weights": "per_query", "fallback": "knn"},
                                     {"weights": "amortized"}], ids=str)  # fmt: skip
def test_explanation_with_weights_of_the_list(options):
    train, test = graded(57), graded(58)
    ranker = run(LGMML(FEATURES, metrics=4, queries_per_metric=3, rounds=3, kernel="rbf", **options), train, 3).double()
    pairs = torch.tensor([[block.start, block.stop - 1] for block in blocks(test.offsets)])
    with torch.no_grad():
        parts = ranker.explain(test.x.double(), test.offsets, pairs)
        scores = ranker(test.x.double(), test.offsets)
    torch.testing.assert_close(parts.sum((1, 2)), scores[pairs[:, 0]] - scores[pairs[:, 1]], rtol=0, atol=1e-10)
