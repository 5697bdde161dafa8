"""The compiled form of local metrics against plain numpy, the bounds of truncation, saving and exporting."""

import os

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import WEIGHTS, fitted, scores_of, write
from tests.rankers.small import FEATURES, data, lists, trainer
from tests.reference.local_metrics import KERNELS as PHI
from torchrank.rankers.lgmml import compiled
from torchrank.rankers.lgmml.compiled import CompiledMetrics, CompiledScorer, compile_scorer, truncate
from torchrank.rankers.lgmml.kernels import KERNELS


def make(metrics=5, features=7, rank=None, rows=40, seed=0, far=3.0):
    """Rows with correlated features, anchors far from them, and the metrics of these anchors."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features)) @ draw.normal(size=(features, features)) * 0.5 + 1.0
    anchors = far * draw.normal(size=(metrics, features))
    factors = draw.normal(size=(metrics, features, rank or features))
    factors *= np.exp(-draw.uniform(0, 3, size=(metrics, 1, rank or features)))
    return x, factors, anchors


def tensors(factors, anchors):
    return torch.tensor(factors), torch.tensor(np.einsum("mdk,md->mk", factors, anchors))


def plain_squares(x, factors, anchors):
    """(p - a)^T M (p - a), one document and one metric at a time."""
    metrics = [factor @ factor.T for factor in factors]
    return np.array([[(p - a) @ m @ (p - a) for m, a in zip(metrics, anchors, strict=True)] for p in x])


def scored(x, factors, anchors, kernel="distance", **options):
    count = len(factors)
    tau = np.linspace(0.5, 2.0, count)
    weights = np.where(np.arange(count) % 3 == 1, 0.0, np.arange(count) - 1.5)  # signs of both kinds, some 0
    factors, shifts = tensors(factors, anchors)
    options = {"dtype": torch.float64} | options
    return compile_scorer(factors, shifts, torch.tensor(tau), torch.tensor(weights), kernel, 1.5, **options), (
        PHI[kernel](np.sqrt(plain_squares(x, factors.numpy(), anchors)) / tau, 1.5) @ weights
    )


@pytest.mark.parametrize("metrics", [1, 5, 100, 300])  # several directions in a GEMM, or one
@pytest.mark.parametrize("rank", [1, 3, 7])
def test_distances(metrics, rank):
    x, factors, anchors = make(metrics, rank=rank)
    module = CompiledMetrics(*tensors(factors, anchors), dtype=torch.float64)
    expected = np.sqrt(plain_squares(x, factors, anchors))
    np.testing.assert_allclose(module.distances(torch.tensor(x)), expected, rtol=1e-11, atol=1e-13 * expected.max())
    single = CompiledMetrics(*tensors(factors, anchors)).distances(torch.tensor(x).float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, expected, rtol=1e-3, atol=1e-5 * expected.max())


def test_more_directions_than_features_are_folded():
    x, factors, anchors = make(features=4, rank=9)
    module = CompiledMetrics(*tensors(factors, anchors), dtype=torch.float64)
    expected = np.sqrt(plain_squares(x, factors, anchors))
    np.testing.assert_allclose(module.distances(torch.tensor(x)), expected, rtol=1e-11)
    assert module.rank == 5


def test_half_of_the_work():
    """The rows of a block are 0 before its first feature, so nothing is lost by leaving these features out."""
    _, factors, anchors = make(300, features=9)
    module = CompiledMetrics(*tensors(factors, anchors))
    for first, block in enumerate(module.columns):
        assert not block[:first].any()
        assert block[first:].any(1).all()


def test_single_precision_near_an_anchor():
    """Closer to the anchor than single precision separates in the packed quadratic form."""
    _, factors, anchors = make(300, features=20, far=10.0)
    x = anchors + 1e-3 * np.random.default_rng(1).normal(size=anchors.shape)
    expected = np.sqrt(plain_squares(x, factors, anchors)).diagonal()
    found = CompiledMetrics(*tensors(factors, anchors)).distances(torch.tensor(x)).diagonal()
    packed = [
        np.float32(p @ m @ p) - 2 * np.float32(p @ m @ a) + np.float32(a @ m @ a)
        for p, a, m in zip(x, anchors, factors @ factors.transpose(0, 2, 1), strict=True)
    ]
    error = np.abs(found.numpy() / expected - 1)
    assert np.median(error) < 0.01
    assert np.median(np.abs(np.sqrt(np.maximum(packed, 0)) / expected - 1)) > 0.1


@pytest.mark.parametrize("kernel", PHI)
def test_scores(kernel):
    assert KERNELS.keys() == PHI.keys()
    x, factors, anchors = make(6)
    scorer, expected = scored(x, factors, anchors, kernel)
    np.testing.assert_allclose(scorer(torch.tensor(x)), expected, rtol=1e-10, atol=1e-12)
    assert len(scorer.weights) == 4  # weights of 0 are gone
    linear = np.arange(7.0)
    scorer, expected = scored(x, factors, anchors, kernel, linear=torch.tensor(linear), dtype=torch.float32)
    np.testing.assert_allclose(scorer(torch.tensor(x)), expected + x @ linear, rtol=1e-4, atol=1e-4)


def test_chunks_change_nothing(monkeypatch):
    x, factors, anchors = make(5, rows=101)
    scorer, _ = scored(x, factors, anchors)
    whole, distances = scorer(torch.tensor(x)), scorer.metrics.distances(torch.tensor(x))
    monkeypatch.setitem(compiled.NUMBERS, "cpu", 1)
    assert scorer.metrics.chunk == 1
    np.testing.assert_allclose(scorer(torch.tensor(x)), whole, rtol=1e-13)
    np.testing.assert_allclose(scorer.metrics.distances(torch.tensor(x)), distances, rtol=1e-13)


def test_nothing_to_score():
    x, factors, anchors = make()
    scorer, _ = scored(x, factors, anchors)
    assert scorer(torch.empty(0, 7)).shape == (0,)
    assert scorer.metrics.distances(torch.empty(0, 7)).shape == (0, 3)
    factors, shifts = tensors(factors, anchors)
    none, linear = torch.zeros(5), torch.arange(7.0)
    for options in ({}, {"rank": 2, "around": "anchor"}):
        scorer = compile_scorer(factors, shifts, torch.ones(5), none, "rbf", linear=linear, **options)
        np.testing.assert_allclose(scorer(torch.tensor(x)), x @ linear.numpy(), rtol=1e-5)


def test_gradient_of_the_rows():
    x, factors, anchors = make(rows=4)
    scorer, _ = scored(x, factors, anchors, "rbf")
    assert torch.autograd.gradcheck(scorer, torch.tensor(x, requires_grad=True))


# ---- low rank -------------------------------------------------------------------------------------------------------


def moments(x):
    return x.mean(0), np.cov(x.T, bias=True)


@pytest.mark.parametrize("rank", [1, 3, 6, 7])
def test_bound_around_the_anchor(rank):
    x, factors, anchors = make(rows=300)
    low, shifts, remainder = truncate(*tensors(factors, anchors), rank=rank, around="anchor")
    approximate = CompiledMetrics(low, shifts, remainder, dtype=torch.float64).distances(torch.tensor(x)).numpy() ** 2
    lost = plain_squares(x, factors, anchors) - approximate
    eigenvalues = np.linalg.eigvalsh(factors @ factors.transpose(0, 2, 1))[:, ::-1]
    following = eigenvalues[:, rank] if rank < 7 else np.zeros(5)
    norms = ((x[:, None] - anchors) ** 2).sum(-1)
    slack = 1e-9 * approximate.max()
    assert (lost >= -slack).all()
    assert (lost <= following * norms + slack).all()
    assert rank == 7 or lost.max() > 10 * slack


@pytest.mark.parametrize("far", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("rank", [1, 3, 6, 7])
def test_bound_around_the_mean(rank, far):
    """What is lost is (p-c)^T R (p-c), a number that no anchor moves; its mean over the data is put back."""
    x, factors, anchors = make(rows=300, far=far)
    mean, covariance = moments(x)
    given = {"mean": torch.tensor(mean), "covariance": torch.tensor(covariance)}
    low, shifts, remainder = truncate(*tensors(factors, anchors), rank=rank, **given)
    row = np.column_stack([x, np.ones(300)]) @ remainder.numpy().T
    images = np.einsum("nd,mdk->nmk", x, low.numpy()) - shifts.numpy()
    exact = plain_squares(x, factors, anchors)
    lost = exact - ((images**2).sum(-1) + row)
    slack = 1e-11 * exact.max()
    np.testing.assert_allclose(lost.mean(0), 0, atol=slack)
    spread = np.linalg.eigvalsh(factors.transpose(0, 2, 1) @ covariance @ factors)[:, ::-1]
    quadratic = lost + spread[:, rank:].sum(1)
    following = spread[:, rank] if rank < 7 else np.zeros(5)
    norms = np.einsum("nd,de,ne->n", x - mean, np.linalg.inv(covariance), x - mean)
    assert (quadratic >= -slack).all()
    assert (quadratic <= following * norms[:, None] + slack).all()
    metrics = CompiledMetrics(low, shifts, remainder, dtype=torch.float64)
    approximate = metrics.distances(torch.tensor(x)).numpy() ** 2
    np.testing.assert_allclose(approximate, np.maximum(exact - lost, 0), atol=slack)


def test_far_anchors_want_the_expansion_around_the_mean():
    x, factors, anchors = make(rows=300, far=100.0)
    mean, covariance = map(torch.tensor, moments(x))
    exact = np.sqrt(plain_squares(x, factors, anchors))
    error = {}
    for around in ("anchor", "mean"):
        parts = truncate(*tensors(factors, anchors), rank=3, mean=mean, covariance=covariance, around=around)
        found = CompiledMetrics(*parts, dtype=torch.float64).distances(torch.tensor(x)).numpy()
        difference = (found - exact) - (found - exact).mean(0)  # a constant per metric changes no ranking
        error[around] = np.abs(difference).max()
    assert error["mean"] < 0.02 * error["anchor"]


@pytest.mark.parametrize("around", ["anchor", "mean"])
@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.2, 0.9])
def test_tolerance_is_the_smallest_rank_that_keeps_it(around, tolerance):
    x, factors, anchors = make(rows=300)
    mean, covariance = moments(x)
    given = {"mean": torch.tensor(mean), "covariance": torch.tensor(covariance), "around": around}
    low, _, _ = truncate(*tensors(factors, anchors), tolerance=tolerance, **given)

    def share(kept):
        whole = np.trace(factors.transpose(0, 2, 1) @ covariance @ factors, axis1=1, axis2=2)
        return (1 - np.trace(kept.mT.numpy() @ covariance @ kept.numpy(), axis1=1, axis2=2) / whole).max()

    rank = low.shape[2]
    assert share(low) <= tolerance + 1e-12
    assert rank == 1 or share(truncate(*tensors(factors, anchors), rank=rank - 1, **given)[0]) > tolerance


def test_low_rank_scores_approach_the_exact_ones():
    x, factors, anchors = make(rows=200, features=12)
    mean, covariance = map(torch.tensor, moments(x))
    errors = []
    for rank in (2, 6, 11, 12):
        scorer, expected = scored(x, factors, anchors, rank=rank, mean=mean, covariance=covariance)
        errors.append(np.abs(scorer(torch.tensor(x)).numpy() - expected).max())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 3, "tolerance": 0.1}, "give either rank or tolerance, got rank=3 and tolerance=0.1"),
        ({"rank": 8}, "rank must be 1 to 7, .* got 8"),
        ({"rank": 0}, "rank must be 1 to 7, .* got 0"),
        ({"tolerance": 1.0}, r"tolerance must be in \[0, 1\), .* got 1.0"),
        ({"rank": 3, "around": "origin"}, "unknown around='origin': choose one of mean, anchor"),
        ({"rank": 3}, "covariance"),
        ({"tolerance": 0.1, "around": "anchor"}, "covariance"),
        ({"rank": 3, "covariance": torch.eye(7)}, "mean="),
        ({"kernel": "localized"}, "unknown kernel='localized' of a compiled scorer: .*rbf"),
    ],
)
def test_refused(options, message):
    _, factors, anchors = make()
    options = {"kernel": "rbf"} | options
    with pytest.raises(ValueError, match=message):
        compile_scorer(*tensors(factors, anchors), torch.ones(5), torch.ones(5), **options)


# ---- files, export, devices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"rank": 3, "around": "anchor"}, {"dtype": torch.float32}])
@pytest.mark.parametrize("features", [1, 7])
def test_saved_and_loaded(tmp_path, options, features):
    x, factors, anchors = make(4, features)
    options = {} if features == 1 and "rank" in options else options
    scorer, _ = scored(x, factors, anchors, "laplace", linear=torch.ones(features), **options)
    scorer.save(tmp_path / "scorer.pt")
    scorer.save(tmp_path / "scorer.pt")
    loaded = CompiledScorer.load(tmp_path / "scorer.pt")
    assert torch.equal(loaded(torch.tensor(x)), scorer(torch.tensor(x)))
    assert (loaded.kernel, loaded.beta) == ("laplace", 1.5)
    assert os.listdir(tmp_path) == ["scorer.pt"]


def test_all_weights_zero_saved_and_loaded(tmp_path):
    scorer = compile_scorer(torch.ones(2, 3, 3), torch.ones(2, 3), torch.ones(2), torch.zeros(2), "rbf")
    scorer.save(tmp_path / "scorer.pt")
    assert CompiledScorer.load(tmp_path / "scorer.pt")(torch.ones(4, 3)).tolist() == [0.0] * 4


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    x, factors, anchors = make()
    scorer, _ = scored(x, factors, anchors)
    scorer.save(tmp_path / "scorer.pt")
    before = (tmp_path / "scorer.pt").read_bytes()

    def fails(values, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(OSError, match="disk full"):
        scorer.save(tmp_path / "scorer.pt")
    assert (tmp_path / "scorer.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["scorer.pt"]


@pytest.mark.parametrize("metrics", [4, 300])
def test_exported_for_any_number_of_rows(metrics):
    x, factors, anchors = make(metrics, rows=10)
    scorer, _ = scored(x, factors, anchors, "laplace", dtype=torch.float32)
    rows = torch.tensor(x, dtype=torch.float32)
    program = torch.export.export(scorer, (rows,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    for count in (3, 10, 5000):
        some = rows.repeat(500, 1)[:count]
        torch.testing.assert_close(program.module()(some), scorer(some))


def test_meta_device_has_no_sync():
    x, factors, anchors = make()
    scorer, _ = scored(x, factors, anchors)
    assert scorer.to("meta")(torch.empty(9, 7, device="meta")).shape == (9,)


# ---- of a fitted ranker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    {},
    {"kernel": "rbf", "anchor": "best"},
    {"weights": "per_query", "rounds": 3},
    {"rounds": 8, "lr": 0.5},
], ids=str)  # fmt: skip
def test_the_compiled_form_of_a_ranker(tmp_path, change):
    ranker, test = fitted(**change), lists(2)
    rows, scores = ranker.transform(test.x, test.offsets), ranker(test.x, test.offsets)
    scorer = ranker.compiled()
    torch.testing.assert_close(scorer(rows), scores, rtol=1e-5, atol=1e-5)
    scorer.save(tmp_path / "scorer.pt")
    assert torch.equal(CompiledScorer.load(tmp_path / "scorer.pt")(rows), scorer(rows))
    torch.testing.assert_close(ranker.compiled(rank=FEATURES)(rows), scores, rtol=1e-4, atol=1e-4)
    errors = [(ranker.compiled(rank=k)(rows) - scores).abs().mean() for k in (1, 3, 6)]
    assert errors[2] < errors[1] < errors[0]
    assert len(ranker.compiled(tolerance=0.2).metrics.columns) <= len(scorer.metrics.columns)


def test_metrics_of_weight_0_are_not_compiled():
    ranker, test = fitted(), lists(2)
    for weights, left in (([0.0, 2.0, 0.0, 1.0], 2), ([0.0] * 4, 0)):
        write(ranker.weights, torch.tensor(weights))
        scorer = ranker.compiled()
        assert len(scorer.weights) == left
        torch.testing.assert_close(scorer(ranker.transform(test.x, test.offsets)), ranker(test.x, test.offsets))


@pytest.mark.parametrize("change", [{"kernel": "localized"}, WEIGHTS["amortized"], WEIGHTS["knn"]], ids=str)
def test_scores_without_a_compiled_form(change):
    with pytest.raises(ValueError, match="only distances from anchors"):
        fitted(**change).compiled()


@pytest.mark.parametrize("change", [*WEIGHTS.values(), {"kernel": "localized"}], ids=str)
def test_predictions_are_the_scores_of_the_ranker_as_it_is(tmp_path, change):
    """The compiled scorer is made when a prediction begins, is gone at its end, and is no part of the state."""
    ranker, test, runner = fitted(rounds=3, **change), lists(2), trainer(tmp_path)
    names = list(ranker.state_dict())
    for scale in (1.0, 2.0):
        write(ranker.weights, scale * ranker.weights)
        predicted = torch.cat(runner.predict(ranker, datamodule=data()))
        np.testing.assert_allclose(predicted, scores_of(ranker, test), rtol=1e-5, atol=1e-5)
        assert not vars(ranker.kept) and list(ranker.state_dict()) == names
