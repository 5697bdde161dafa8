"""RankingEstimator: every ranker of lists by arrays, against the ranker itself; scikit-learn's tools around it."""

import math
import pickle
import subprocess
import sys
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import yaml
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import torchrank
from torchrank import CheckpointError, DataError, RankingEstimator, RankingSet

pytestmark = pytest.mark.filterwarnings("ignore")
DRAW = np.random.default_rng(3)
GROUP = np.array([6, 9, 5, 8, 7, 10])
N, D = int(GROUP.sum()), 4
X = DRAW.normal(size=(N, D))
Y = np.clip(np.round(X[:, 0] + 0.5 * X[:, 1] + 0.3 * DRAW.normal(size=N)), 0, 3)
QID = np.repeat([f"q{n}" for n in DRAW.permutation(6)], GROUP)
SHUFFLED = DRAW.permutation(N)
EVAL = (X[:15], Y[:15], GROUP[:2])
QUICK = {
    "gbdt": {"min_leaf": 2, "threads": 1, "epochs": 5},
    "xgboost": {"threads": 1, "epochs": 5},
    "localrank": {"clusters": [1, 2], "min_lists": 1, "rounds": 20},
    "lgmml_net": {"epochs": 2},
    "lgmml": {"rounds": 2},
    "queryknn": {"neighbours": 3},
    "neural": {"epochs": 2},
    "lambdarank": {"epochs": 2},
    "adarank": {"epochs": 20},
    "rankboost": {"epochs": 20},
    "pamir": {"epochs": 5},
}
MODELS = sorted(RankingEstimator.MODELS)


def make(model):
    options = QUICK.get(model, {}) | ({"members": members()} if model == "ensemble" else {})
    return RankingEstimator(model, **options)


@cache
def members():
    """Checkpoints, which are plain values."""
    folder, train = tempfile.mkdtemp(), RankingSet(X, Y, group=GROUP)
    kinds = (torchrank.ListNet, torchrank.SingleFeature)
    return [str(kind(D).fit(train).save(Path(folder) / f"{kind.__name__}.ckpt")) for kind in kinds]


def by_hand(scores, labels, group):
    """Mean NDCG@10 typed again plainly."""
    found, start = [], 0
    for size in group:
        s, y = scores[start : start + size], labels[start : start + size]
        start += size
        discounts = 1 / np.log2(np.arange(2, 2 + min(10, size)))
        gains = 2.0 ** y[np.argsort(-s, kind="stable")][:10] - 1
        ideal = 2.0 ** np.sort(y)[::-1][:10] - 1
        if ideal.sum() > 0:
            found.append((gains * discounts).sum() / (ideal * discounts).sum())
    return np.mean(found)


@pytest.fixture(params=MODELS, scope="module")
def fitted(request):
    torch.manual_seed(5)
    return request.param, make(request.param).fit(X, Y, group=GROUP, eval_set=EVAL)


def target_of(configs, name):
    """The class of a config, which may extend another one."""
    own = configs[name]
    return own["_target_"].split(".")[-1] if "_target_" in own else target_of(configs, own["defaults"][0])


def test_the_names_are_those_of_the_configs():
    """All models of conf/model but those that compare with query vectors; presets of another one if useful."""
    configs = {path.stem: yaml.safe_load(path.read_text()) for path in Path("conf/model").glob("*.yaml")}
    targets = {name: target_of(configs, name) for name in configs}
    distances = {"mlr", "rmlr", "lowrank_mlr", "metric_baseline", "lgmml_query"}
    assert {name: kind for name, (kind, _) in RankingEstimator.MODELS.items()} == {
        name: kind
        for name, kind in targets.items()
        if name not in distances | {"adapter"} and ("defaults" not in configs[name] or name in RankingEstimator.MODELS)
    }
    preset = {key: value for key, value in configs["lgmml_query"].items() if key != "defaults"}
    assert torchrank.MetricEstimator.MODELS["lgmml_query"][1] == preset
    assert torchrank.MetricEstimator.MODELS.keys() == distances | {"gmml"}


def test_scores_are_those_of_the_ranker(fitted):
    model, estimator = fitted
    expected = estimator.ranker_(X, group=GROUP).detach().double().numpy()
    np.testing.assert_array_equal(estimator.predict(X, group=GROUP), expected)
    np.testing.assert_array_equal(estimator.predict(X, qid=QID), expected)
    np.testing.assert_array_equal(estimator.rank(X, qid=QID), estimator.ranker_.rank(X, group=GROUP).numpy())
    found = estimator.score(X, Y, group=GROUP)
    assert found == pytest.approx(by_hand(expected, Y, GROUP), abs=1e-9)
    assert model == "random" or found > 0.75


def test_query_ids_in_any_order(fitted):
    _, estimator = fitted
    x, qid = X[SHUFFLED], QID[SHUFFLED]
    expected = np.empty(N)
    for each in np.unique(qid):  # a list keeps the order of its rows
        expected[qid == each] = estimator.predict(x[qid == each])
    found = estimator.predict(x, qid=qid)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    order, first = estimator.rank(x, qid=qid), list(dict.fromkeys(qid))
    start = 0
    for each in first:
        rows = np.flatnonzero(qid == each)
        block = order[start : start + len(rows)]
        assert (block == rows[np.argsort(-found[rows], kind="stable")]).all()
        start += len(rows)


def test_saved_and_loaded(fitted, tmp_path):
    _, estimator = fitted
    estimator.save(tmp_path / "e.ckpt")
    for again in (RankingEstimator.load(tmp_path / "e.ckpt"), pickle.loads(pickle.dumps(estimator))):
        assert again.get_params() == estimator.get_params() and again.n_features_in_ == D
        np.testing.assert_array_equal(again.predict(X, qid=QID), estimator.predict(X, qid=QID))
    ranker = torchrank.load(tmp_path / "e.ckpt")
    np.testing.assert_array_equal(ranker(X, group=GROUP).detach().double(), estimator.predict(X, group=GROUP))


def test_importances(fitted):
    model, estimator = fitted
    own = {"adarank", "rankboost", "listnet", "lambdarank", "ranksvm", "svmmap", "pamir", "domination", "gbdt",
           "singlefeature", "xgboost"}  # fmt: skip
    assert hasattr(estimator, "feature_importances_") == (model in own)
    if model in own:
        found = estimator.feature_importances_
        assert found.shape == (D,) and (found >= 0).all() and found.sum() == pytest.approx(1)
        assert found.argmax() == 0
    if model in ("lgmml", "gbdt"):
        measured = estimator.importances(X, Y, qid=QID, repeats=2)
        assert measured.shape == (D,) and measured.argmax() == 0


def test_a_fit_of_arrays_is_that_of_the_ranker():
    expected = torchrank.ListNet(D).fit(RankingSet(X, Y, group=GROUP))(X, group=GROUP).detach().double().numpy()
    frame = pd.DataFrame(X, columns=list("abcd"))
    fits = [
        RankingEstimator("listnet").fit(X, Y, group=GROUP),
        RankingEstimator("listnet").fit(X.tolist(), Y.tolist(), qid=QID.tolist()),
        RankingEstimator("listnet").fit(frame, pd.Series(Y), qid=pd.Series(QID)),
        RankingEstimator("listnet").fit(pl.DataFrame(X, schema=list("abcd")), pl.Series(Y), qid=pl.Series(QID)),
        RankingEstimator("listnet").fit(torch.tensor(X), torch.tensor(Y), group=torch.tensor(GROUP)),
    ]
    for estimator in fits:
        np.testing.assert_allclose(estimator.predict(X, qid=QID), expected, rtol=0, atol=1e-9)
    assert fits[2].ranker_.feature_names == tuple("abcd") and fits[2].feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names should match"):
        fits[2].predict(frame[list("abdc")], qid=QID)


def test_interleaved_rows_teach_what_sorted_ones_teach():
    x, y, qid = X[SHUFFLED], Y[SHUFFLED], QID[SHUFFLED]
    order = np.argsort(qid, kind="stable")
    one = RankingEstimator("svmmap").fit(x, y, qid=qid)
    other = RankingEstimator("svmmap").fit(x[order], y[order], qid=qid[order])
    np.testing.assert_allclose(one.predict(x, qid=qid), other.predict(x, qid=qid), rtol=0, atol=5e-3)


def test_validation_lists():
    options = {"epochs": 3, "loss": "ranknet"}
    inside = RankingSet(X[:15], Y[:15], group=GROUP[:2])
    found = [
        RankingEstimator("neural", **options).fit(X, Y, group=GROUP, eval_set=each) for each in (EVAL, [EVAL], inside)
    ]
    found += [RankingEstimator("neural", **options).fit(X, Y, qid=QID, eval_set=(X[:15], Y[:15], QID[:15]))]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].predict(X), other.predict(X))
    for wrong in ((X, Y), X, {"X": X}, [EVAL, EVAL]):
        with pytest.raises(DataError, match=r"eval_set must be \(X, y, group\)"):
            RankingEstimator("neural").fit(X, Y, group=GROUP, eval_set=wrong)


def test_scores_may_be_weighted():
    estimator, weights = RankingEstimator("listnet").fit(X, Y, group=GROUP), DRAW.random(N)
    starts = np.concatenate(([0], GROUP.cumsum()))
    scores = estimator.predict(X, group=GROUP)
    by_list = [by_hand(scores[a:b], Y[a:b], [b - a]) for a, b in pairwise(starts)]
    expected = np.average(by_list, weights=[weights[a:b].mean() for a, b in pairwise(starts)])
    assert estimator.score(X, Y, weights, group=GROUP) == pytest.approx(expected)


def test_the_seed_draws_the_fit():
    first, same, other = (RankingEstimator("neural", epochs=1, seed=seed).fit(X, Y, group=GROUP) for seed in (1, 1, 2))
    assert (first.predict(X) == same.predict(X)).all() and (first.predict(X) != other.predict(X)).any()
    assert RankingEstimator("random", seed=7).fit(X, Y, group=GROUP).ranker_.hparams["seed"] == 7


def test_folds_pipelines_and_searches():
    numbers = np.unique(QID, return_inverse=True)[1]
    folds = list(GroupKFold(3).split(X, Y, groups=QID))
    last = make_pipeline(StandardScaler(), RankingEstimator("listnet", transform=None))
    by_fold = []
    for train, test in folds:
        last.fit(X[train], Y[train], rankingestimator__qid=QID[train])
        by_fold.append(last[-1].score(last[:-1].transform(X[test]), Y[test], qid=QID[test]))
        assert last.predict(X[test], qid=QID[test]).shape == (len(test),)
    x = StandardScaler().fit_transform(X)
    with config_context(enable_metadata_routing=True):
        ranker = RankingEstimator("listnet").set_fit_request(qid=True).set_score_request(qid=True)
        scores = cross_val_score(ranker, X, Y, cv=GroupKFold(3), params={"qid": QID, "groups": QID})
        np.testing.assert_allclose(scores, by_fold)  # the ranker scales by the training rows as the pipeline does
        grid = {"l2": np.array([1e-4, 1e-1]), "model": ["listnet"]}
        search = GridSearchCV(ranker, grid, cv=GroupKFold(3)).fit(x, Y, qid=numbers, groups=numbers)
        assert search.best_score_ > 0.8 and search.cv_results_["mean_test_score"].shape == (2,)
        last = make_pipeline(StandardScaler(), GridSearchCV(ranker, grid, cv=GroupKFold(3)))
        assert last.fit(X, Y, qid=QID, groups=QID)[-1].best_score_ == pytest.approx(search.best_score_)
    framed = make_pipeline(StandardScaler(), RankingEstimator("listnet")).set_output(transform="pandas")
    framed.fit(pd.DataFrame(X, columns=list("abcd")), Y, rankingestimator__qid=QID)
    assert framed[-1].ranker_.feature_names == tuple("abcd")


def test_parameters_and_clones():
    estimator = RankingEstimator("listnet", l2=0.1)
    assert estimator.get_params() == {
        "model": "listnet",
        "epochs": None,
        "batch_documents": 20_000,
        "seed": 0,
        "l2": 0.1,
    }
    copy = clone(estimator).set_params(l2=0.5, transform="quantile")
    assert copy.get_params() == estimator.get_params() | {"l2": 0.5, "transform": "quantile"}
    assert repr(estimator) == "RankingEstimator(l2=0.1, model='listnet')"
    assert clone(RankingEstimator("neural", scorer_options={"hidden": [4]})).get_params()["scorer_options"] == {
        "hidden": [4]
    }
    with pytest.raises(ValueError, match="listnet has no parameter C: choose from batch_documents, epochs, l2"):
        estimator.set_params(C=1.0)
    assert estimator.set_params(model="svmmap", C=1.0).model == "svmmap"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": [3]}, "sizes in group sum to 3, but X has 45 rows"),
        ({"group": GROUP, "qid": QID}, "one of the two"),
        ({"qid": QID[:3]}, "qid has 3 rows, but X has 45"),
        ({"qid": [None] * N}, "qid is missing in row 0"),
        ({"qid": 7}, "qid is an int: give a column"),
        ({"y": ["good"] * N, "group": GROUP}, "could not convert string|must hold numbers"),
        ({"X": X * np.nan, "group": GROUP}, "Input X contains NaN"),
        ({"y": Y * np.nan, "group": GROUP}, "Input y contains NaN"),
        ({"y": Y[:5], "group": GROUP}, "inconsistent numbers of samples"),
    ],
)
def test_wrong_use_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        RankingEstimator("listnet").fit(**{"X": X, "y": Y} | given)


def test_more_wrong_use(tmp_path):
    with pytest.raises(ValueError, match="unknown model='mlr': choose one of adarank, dk"):
        RankingEstimator("mlr").fit(X, Y, group=GROUP)
    with pytest.raises(ValueError, match="listnet has no parameter C"):
        RankingEstimator("listnet", C=1.0).fit(X, Y, group=GROUP)
    with pytest.raises(NotFittedError):
        RankingEstimator().predict(X)
    with pytest.raises(NotFittedError):
        RankingEstimator().save(tmp_path / "e.ckpt")
    assert not list(tmp_path.iterdir()) and not hasattr(RankingEstimator(), "feature_importances_")
    estimator = RankingEstimator("listnet").fit(X, Y, group=GROUP)
    with pytest.raises(ValueError, match="X has 2 features, but RankingEstimator is expecting 4"):
        estimator.predict(X[:, :2])
    with pytest.warns(torchrank.DataWarning, match="all rows are one list"):
        RankingEstimator("listnet").fit(X, Y)
    assert math.isnan(estimator.score(X, 0 * Y))
    torch.save({"a": 1}, tmp_path / "x.ckpt")
    with pytest.raises(CheckpointError, match="not a checkpoint of torchrank"):
        RankingEstimator.load(tmp_path / "x.ckpt")


def test_it_works_without_scikit_learn():
    code = """
import sys; sys.modules["sklearn"] = None
import numpy as np, torchrank
x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3
estimator = torchrank.RankingEstimator("listnet", l2=0.1).fit(x, y, group=[10, 10])
print(estimator.predict(x, qid=[1, 2] * 10).shape, estimator.set_params(l2=1.0), estimator.n_features_in_)
for call in (lambda: torchrank.RankingEstimator().predict(x), lambda: estimator.fit(x, y[:3], group=[20])):
    try:
        call()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "(20,) RankingEstimator(model='listnet', epochs=None, batch_documents=20000, seed=0, l2=1.0) 3",
        "this RankingEstimator is not fitted: call fit first",
        "y must have one label for each of 20 rows, got shape (3,)",
    ], done.stderr


class Net(torch.nn.Linear):
    def __init__(self, num_inputs):
        super().__init__(num_inputs, 1)


def test_an_own_network_is_saved_by_its_name_and_loaded_as_it_is_given(tmp_path):
    x, y, path = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 3, tmp_path / "e.ckpt"
    estimator = RankingEstimator("neural", scorer=Net, epochs=2).fit(x, y, group=[10] * 4)
    estimator.save(path)
    with pytest.raises(torchrank.CheckpointError, match=r"needs scorer='.*Net'.*nothing is imported"):
        RankingEstimator.load(path)
    again = RankingEstimator.load(path, scorer=Net)
    assert np.array_equal(again.predict(x), estimator.predict(x)) and again.get_params()["scorer"] is Net


@pytest.mark.parametrize("params", [{"scorer": "evil.Net"}, {"model": "localrank", "base_options": {"loss": "evil.f"}}])
def test_no_name_in_a_file_is_imported_by_the_next_fit(tmp_path, params):
    x, y, path = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 3, tmp_path / "e.ckpt"
    RankingEstimator("neural", epochs=1).fit(x, y, group=[10] * 4).save(path)
    content = torch.load(path, weights_only=True)
    content["estimator"]["params"] |= params
    torch.save(content, path)
    with pytest.raises(torchrank.CheckpointError, match="nothing is imported because a file names it"):
        RankingEstimator.load(path)
