"""MetricEstimator as scikit-learn uses it: pipelines, clones, cross validation, searches; votes typed again plainly."""

import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchrank import MLR, MetricEstimator, RankingEstimator

pytestmark = pytest.mark.peers
QUICK = {"measure": "auc", "C": 1.0, "eps": 5e-2}


@pytest.fixture(scope="module")
def wine():
    x, y = load_wine(return_X_y=True)
    keep = np.random.default_rng(0).permutation(len(x))[:90]
    x = (x - x.mean(0)) / x.std(0)
    return x[keep], np.array(["red", "white", "rose"])[y[keep]]


@pytest.fixture(scope="module")
def fitted(wine):
    return MetricEstimator(n_neighbors=4, **QUICK).fit(wine[0][:60], wine[1][:60])


def test_transform_is_the_product_with_the_components(wine, fitted):
    images = fitted.transform(wine[0])
    np.testing.assert_allclose(images, wine[0] @ fitted.components_.T, atol=1e-12)
    np.testing.assert_allclose(fitted.components_.T @ fitted.components_, fitted.get_mahalanobis_matrix(), atol=1e-12)
    gap = wine[0][0] - wine[0][1]
    squared = ((images[0] - images[1]) ** 2).sum()
    assert squared == pytest.approx(gap @ fitted.get_mahalanobis_matrix() @ gap) and isinstance(fitted.ranker_, MLR)


@pytest.mark.parametrize("k", [1, 3, 4, 100])
def test_votes_are_those_of_the_nearest_points(wine, fitted, k):
    fitted = pickle.loads(pickle.dumps(fitted)).set_params(n_neighbors=k)
    train, test = fitted.transform(wine[0][:60]), fitted.transform(wine[0][60:])
    for image, found in zip(test, fitted.predict(wine[0][60:]), strict=True):
        order = np.argsort(((train - image) ** 2).sum(1), kind="stable")[:k]
        votes = Counter(wine[1][:60][order])
        assert found == next(c for c in wine[1][:60][order] if votes[c] == max(votes.values()))
    right = np.mean(fitted.predict(wine[0][60:]) == wine[1][60:])
    assert fitted.score(wine[0][60:], wine[1][60:]) == right and (k > 4 or right > 0.85)


def test_probabilities_are_shares_of_the_votes(wine, fitted):
    train, test = fitted.transform(wine[0][:60]), fitted.transform(wine[0][60:])
    for image, shares in zip(test, fitted.predict_proba(wine[0][60:]), strict=True):
        votes = wine[1][:60][np.argsort(((train - image) ** 2).sum(1), kind="stable")[:4]]
        np.testing.assert_allclose(shares, [np.mean(votes == name) for name in fitted.classes_], rtol=0, atol=2e-12)
    assert cross_val_score(fitted, *wine, cv=2, scoring="roc_auc_ovr").min() > 0.9


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_data_frames(wine, library):
    frames = pytest.importorskip(library)
    names = [f"x{i}" for i in range(13)]
    frame = frames.DataFrame(dict(zip(names, wine[0].T, strict=True)))
    metric = MetricEstimator(**QUICK).fit(frame, wine[1])
    assert metric.score(frame, wine[1]) == metric.score(wine[0], wine[1])
    if library == "pandas":  # the frames whose column names scikit-learn looks at
        assert metric.feature_names_in_.tolist() == names
        with pytest.raises(ValueError, match="feature names should match"):
            metric.predict(frame[names[::-1]])
    expected, columns = metric.transform(wine[0]), metric.get_feature_names_out().tolist()
    kept = clone(metric.set_output(transform=library)).fit(frame, wine[1])
    inside = make_pipeline(StandardScaler(with_mean=False, with_std=False), MetricEstimator(**QUICK))
    for learned in (kept, inside.set_output(transform=library).fit(frame, wine[1])):
        images = learned.transform(frame)
        assert isinstance(images, frames.DataFrame) and list(images.columns) == columns
        np.testing.assert_allclose(images.to_numpy(), expected, atol=1e-12)
    with config_context(transform_output=library):
        assert isinstance(clone(inside[-1]).fit(*wine).transform(wine[0].tolist()), frames.DataFrame)
    assert isinstance(metric.set_output(transform="default").transform(frame), np.ndarray)
    assert not hasattr(metric.fit(*wine), "feature_names_in_")
    with pytest.raises(ValueError, match="arrow"):
        metric.set_output(transform="arrow").transform(frame)


def test_in_pipelines_and_searches(wine):
    last = make_pipeline(StandardScaler(), MetricEstimator(n_neighbors=3, **QUICK))
    scores = cross_val_score(last, *wine, cv=3)
    assert scores.shape == (3,) and scores.min() > 0.85
    middle = make_pipeline(StandardScaler(), MetricEstimator(**QUICK), KNeighborsClassifier(3))
    assert middle.fit(*wine).score(*wine) > 0.9
    grid = {"metricestimator__n_neighbors": np.array([1, 5]), "metricestimator__C": np.logspace(-1, 0, 2)}
    search = GridSearchCV(last, grid, cv=2).fit(*wine)
    assert search.best_score_ > 0.85 and len(search.cv_results_["params"]) == 4


@pytest.mark.parametrize(
    "options",
    [{"model": "rmlr", "lam": 0.1}, {"model": "lowrank_mlr", "rank": 2, "epochs": 30}, {"model": "metric_baseline"}],
    ids=str,
)
def test_other_models(wine, options):
    quick = {} if options["model"] == "metric_baseline" else {"measure": "auc"}
    metric = MetricEstimator(n_neighbors=3, transform="standard", **options, **quick)
    images = metric.fit_transform(10 * wine[0][:60], wine[1][:60])
    assert images.shape == (60, len(metric.components_)) and metric.score(10 * wine[0][60:], wine[1][60:]) > 0.8


def test_parameters_and_clones():
    metric = MetricEstimator(n_neighbors=5, C=10.0, measure="mrr")
    assert metric.get_params() == {"model": "mlr", "n_neighbors": 5, "epochs": 100, "C": 10.0, "measure": "mrr"}
    copy = clone(metric).set_params(n_neighbors=1, C=2.0, eps=1e-2)
    assert copy.get_params() == metric.get_params() | {"n_neighbors": 1, "C": 2.0, "eps": 1e-2}
    assert repr(metric) == "MetricEstimator(C=10.0, measure='mrr', n_neighbors=5)"


def test_wrong_use_is_refused(wine):
    with pytest.raises(NotFittedError):
        MetricEstimator().transform(wine[0])
    with pytest.raises(ValueError, match="unknown model='lmnn'"):
        MetricEstimator("lmnn").fit(*wine)
    with pytest.raises(ValueError, match=r"C must be one number here .* Tune C with GridSearchCV"):
        MetricEstimator(C=[1.0, 2.0]).fit(*wine)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        MetricEstimator().fit(wine[0], [0, 1, 2])
    with pytest.raises(ValueError, match="n_neighbors must be an integer >= 1, got 0"):
        MetricEstimator(n_neighbors=0).fit(*wine)
    for epochs in (-1, 2.5, "a"):
        with pytest.raises(ValueError, match=f"epochs must be an integer >= 1, got {epochs!r}"):
            MetricEstimator("lowrank_mlr", epochs=epochs).fit(*wine)
    metric = MetricEstimator(**QUICK).fit(wine[0][:20], wine[1][:20])
    for wrong in (wine[1][:20, None].repeat(2, 1), wine[1][:1]):
        with pytest.raises(ValueError, match=r"multiclass|inconsistent numbers"):
            metric.score(wine[0][:20], wrong)
    with pytest.raises(ValueError, match="X has 2 features, but MetricEstimator is expecting 13"):
        metric.predict(wine[0][:, :2])


def test_the_cut_off_of_a_measure_is_an_option_of_the_ranker(wine):
    metric = MetricEstimator(n_neighbors=1, measure="ndcg", k=5, C=100.0, eps=0.1).fit(wine[0][:30], wine[1][:30])
    assert metric.ranker_.cuts.oracle.k == 5 and metric.get_params()["k"] == 5


def test_options_of_other_libraries_and_numpy_integers(wine):
    options = {"max_iter": 1, "n_components": 2}
    metric = MetricEstimator("metric_baseline", method="nca", options=options).fit(*wine)
    assert metric.transform(wine[0]).shape == (90, 2) and clone(metric).get_params()["options"] == options
    assert metric.get_feature_names_out().tolist() == ["metric0", "metric1"]
    with pytest.raises(ValueError, match=r"options of method=nca: .*unexpected keyword argument 'foo'"):
        MetricEstimator("metric_baseline", method="nca", options={"foo": 1}).fit(*wine)
    MetricEstimator("lowrank_mlr", epochs=np.int64(1), n_neighbors=np.int64(1)).fit(*wine).predict(wine[0])


def test_parameters_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match="mlr has no parameter rank: choose from C, anchor"):
        MetricEstimator().set_params(rank=2)
    with pytest.raises(ValueError, match="metric_baseline has no parameter C"):
        MetricEstimator("metric_baseline", C=1.0).fit([[0.0], [1.0]], [0, 1])
    assert MetricEstimator().set_params(model="lowrank_mlr", rank=2).get_params()["rank"] == 2


def test_a_failed_fit_leaves_the_last_one(wine, fitted):
    fitted = pickle.loads(pickle.dumps(fitted))
    expected = fitted.predict(wine[0])
    with pytest.raises(ValueError, match="C must be a number > 0, or a list of them, got -1"):
        fitted.set_params(C=-1).fit(wine[0][:20, :5], np.arange(20) % 2)
    assert (fitted.predict(wine[0]) == expected).all()
    with pytest.raises(ValueError, match="n_neighbors must be an integer >= 1, got 0"):
        fitted.set_params(n_neighbors=0).predict(wine[0])


def test_scores_may_be_weighted(wine, fitted):
    right = fitted.predict(wine[0][60:]) == wine[1][60:]
    weights = np.random.default_rng(0).random(30)
    assert fitted.score(wine[0][60:], wine[1][60:], weights) == pytest.approx(weights[right].sum() / weights.sum())


def test_what_is_learned_is_not_there_before_a_fit():
    with pytest.raises(NotFittedError):
        MetricEstimator().predict([[0.0]])
    for name in ("components_", "classes_", "ranker_"):
        assert not hasattr(MetricEstimator(), name)


def test_distances_of_pairs(wine, fitted):
    pairs = wine[0][:20].reshape(10, 2, 13) + 1e6  # so far from 0 a product of squares would lose every digit
    gaps, metric = pairs[:, 0] - pairs[:, 1], fitted.get_mahalanobis_matrix()
    expected = np.array([(gap @ metric @ gap) ** 0.5 for gap in gaps])
    np.testing.assert_allclose(fitted.pair_distance(pairs), expected, rtol=1e-8)
    distance = fitted.get_metric()
    assert distance(*pairs[3]) == pytest.approx(expected[3], rel=1e-8)
    assert distance(*pairs[3].tolist(), squared=True) == pytest.approx(expected[3] ** 2, rel=1e-8)
    np.testing.assert_array_equal(fitted.pair_score(pairs), -fitted.pair_distance(pairs))
    with pytest.raises(ValueError, match=r"expected pairs \(n, 2, 13\), got \(20, 13\)"):
        fitted.pair_distance(wine[0][:20])
    with pytest.raises(NotFittedError):
        MetricEstimator().get_metric()


def test_without_scikit_learn_it_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; from torchrank import MetricEstimator"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MetricEstimator needs scikit-learn 1.6 or newer: pip install" in done.stderr


def test_a_fit_changes_no_global_state(wine):
    state = torch.get_rng_state()
    MetricEstimator(**QUICK).fit(wine[0][:20], wine[1][:20])
    assert torch.equal(state, torch.get_rng_state())


def test_points_far_from_0_are_ranked_as_near_ones():
    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    near, far = (MetricEstimator("metric_baseline", n_neighbors=3).fit(points, y) for points in (x, x + 1e7))
    assert (near.predict(x) == far.predict(x + 1e7)).all()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.0, float("nan")], [1.0, 2.0]], [0, 1], "Input X contains NaN"),
        ([[0.0, 1.0], [1.0, 2.0]], [[0, 1], [1, 0]], "y should be a 1d array"),
        ([[0.0, 1.0], [1.0, 2.0]], [0.0, float("nan")], "Input y contains NaN"),
        ([[0.0, 1.0], [1.0, 2.0]], [0.5, 1.0], "Unknown label type"),
        ([[0.0, 1.0], [1.0, 2.0]], [0.0, float("inf")], "Input y contains infinity"),
        ([[1j, 1.0], [1.0, 2.0]], [0, 1], "(?i)complex"),
        (np.zeros((2, 0)), [0, 1], "0 feature"),
        (csr_matrix([[0.0, 1.0], [1.0, 2.0]]), [0, 1], "Sparse data was passed"),
    ],
)
def test_bad_points_and_classes_are_refused(x, y, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MetricEstimator("metric_baseline").fit(x, y)


@pytest.mark.parametrize("options", [{"t": 0.5, "ridge": 0.1, "kappa": 1.0}, {}], ids=str)
def test_gmml_votes_by_its_one_metric(wine, options):
    metric = MetricEstimator("gmml", n_neighbors=3, **options).fit(wine[0][:60], wine[1][:60])
    assert metric.score(wine[0][60:], wine[1][60:]) > 0.85
    x = torch.tensor(wine[0])
    scores = metric.ranker_(x, group=[len(x)], queries=x[:1]).double()
    near = ((metric.transform(wine[0]) - metric.transform(wine[0])[:1]) ** 2).sum(1) ** 0.5
    np.testing.assert_allclose(-scores.numpy(), near, rtol=1e-4, atol=1e-5)  # its scores are in float32
    np.testing.assert_allclose(
        metric.pair_distance(np.stack([wine[0], wine[0][:1].repeat(90, 0)], 1)), near, rtol=1e-9, atol=1e-9
    )


def test_lgmml_query_has_a_metric_at_every_point(wine):
    metric = MetricEstimator("lgmml_query", n_neighbors=3, metrics=5).fit(wine[0][:60], wine[1][:60])
    assert metric.score(wine[0][60:], wine[1][60:]) > 0.85
    assert not hasattr(metric, "transform") and not hasattr(metric, "components_")
    centred = torch.tensor(wine[0] - wine[0][:60].mean(0))
    for row in (60, 61, 75):
        scores = metric.ranker_(centred[:60], group=[60], queries=centred[row : row + 1]).double().numpy()
        nearest = wine[1][:60][np.argsort(-scores, kind="stable")[:3]]
        votes = Counter(nearest)
        expected = next(name for name in nearest if votes[name] == max(votes.values()))
        assert metric.predict(wine[0][row : row + 1]) == [expected]
        pairs = np.stack([wine[0][[row] * 60], wine[0][:60]], 1)
        np.testing.assert_allclose(metric.pair_distance(pairs) ** 2, -scores, rtol=1e-4, atol=1e-4)


def test_a_metric_stays_what_it_was(wine):
    for model in ("gmml", "lgmml_query"):
        options = {"t": 0.5, "ridge": 0.1, "kappa": 1.0}
        metric = MetricEstimator(model, **options).fit(wine[0][:60], wine[1][:60])
        distance, (u, v) = metric.get_metric(), wine[0][:2]
        before = distance(u, v)
        assert distance(u[None], v[None]) == distance(u, v[None]) == before == metric.pair_distance([[u, v]])[0]
        assert distance(u, v, squared=True) == before**2
        metric.set_params(ridge=1.0).fit(3 * wine[0][:30], wine[1][:30])
        assert distance(u, v) == before and metric.get_metric()(u, v) != before
        with pytest.raises(ValueError, match=r"expected two points \(13,\) or \(1, 13\)"):
            distance(wine[0][:3], v)


@pytest.mark.parametrize("k", [2, 4, 6])
def test_the_most_probable_class_is_the_predicted_one(wine, k):
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = np.random.default_rng(1).integers(0, 3, 60)
    metric = MetricEstimator("metric_baseline", n_neighbors=k).fit(x, y)
    shares = metric.predict_proba(x)
    assert (np.sort(shares, 1)[:, -1] - np.sort(shares, 1)[:, -2] < 1e-9).any()  # there are ties
    np.testing.assert_array_equal(metric.classes_[shares.argmax(1)], metric.predict(x))
    np.testing.assert_allclose(shares.sum(1), 1)


@pytest.mark.parametrize("model", ["mlr", "gmml", "lgmml_query"])
def test_saved_and_loaded(wine, model, tmp_path):
    options = QUICK if model == "mlr" else {"t": 0.5, "ridge": 0.1, "kappa": 1.0}
    metric = MetricEstimator(model, **options).fit(wine[0][:60], wine[1][:60])
    metric.save(tmp_path / "m.ckpt")
    again = MetricEstimator.load(tmp_path / "m.ckpt")
    assert again.get_params() == metric.get_params() and again.classes_.tolist() == metric.classes_.tolist()
    np.testing.assert_array_equal(again.predict_proba(wine[0]), metric.predict_proba(wine[0]))
    with pytest.raises(ValueError, match="holds no RankingEstimator"):
        RankingEstimator.load(tmp_path / "m.ckpt")
