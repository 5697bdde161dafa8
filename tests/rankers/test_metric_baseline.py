"""Metrics of other libraries: the same neighbours as these libraries find themselves."""

import builtins
import warnings

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.small import data, trainer
from torchrank import MetricBaseline, RankingDataModule, RankingSet
from torchrank.data.sources.points import load_points

OPTIONS = {"euclidean": None, "nca": None, "lmnn": {"max_iter": 60, "n_neighbors": 2}, "itml": {"max_iter": 20}}


def iris() -> RankingDataModule:
    sets = load_points("iris", validate="leave_one_out", test_fraction=0.7)
    return RankingDataModule.from_sets(**sets, measures=["knn_error@1", "map"])


def fit(folder, ranker, module):
    runner = trainer(folder, 1, monitor="val/map")
    runner.fit(ranker, datamodule=module)
    return runner


def theirs(method, x, y):
    """Rows as the library itself embeds them, with the options that say what ours say."""
    if method == "euclidean":
        return lambda rows: rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "nca":
            from sklearn.neighbors import NeighborhoodComponentsAnalysis as Learner
        elif method == "lmnn":
            from metric_learn import LMNN as Learner
        else:
            from metric_learn import ITML_Supervised as Learner
        return Learner(random_state=3, **OPTIONS[method] or {}).fit(x, y).transform


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("method", OPTIONS)
def test_the_nearest_point_is_that_of_the_library(method, tmp_path):
    for name in ("sklearn",) if method == "nca" else ("sklearn", "metric_learn"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(name)
    module, ranker = iris(), MetricBaseline(4, method, seed=3, options=OPTIONS[method])
    runner = fit(tmp_path, ranker, module)
    runner.test(ranker, datamodule=module, verbose=False)
    train, test = module.sets["train"], module.sets["test"]
    x, queries = (module.ready(name).queries.double().numpy() for name in ("train", "test"))
    embed = theirs(method, x, train.classes.numpy())
    distances = ((embed(queries)[:, None] - embed(x)) ** 2).sum(2)
    wrong = train.classes.numpy()[distances.argmin(1)] != test.classes.numpy()
    assert ranker.measured["test"]["default"]["measures"]["knn_error@1"] == pytest.approx(wrong.mean(), abs=1e-9)
    scores = ranker(test[:].x, test[:].offsets, index=test[:].index, queries=test[:].queries).view(distances.shape)
    np.testing.assert_allclose(scores, -distances, rtol=1e-3, atol=1e-3 * distances.max())
    metric = ranker.get_mahalanobis_matrix()
    torch.testing.assert_close(metric, ranker.components.T @ ranker.components)
    again = torchrank.load(tmp_path / "last.ckpt")
    assert torch.equal(again.components, ranker.components) and again.method == method


def test_what_cannot_be_learned_is_said(tmp_path):
    with pytest.raises(ValueError, match="unknown method='mmc': choose one of euclidean, nca, lmnn, itml"):
        MetricBaseline(4, "mmc")
    with pytest.raises(ValueError, match="learns distances from query vectors"):
        fit(tmp_path, MetricBaseline(6), data(measures=["map"]))
    sets = load_points("iris", val_fraction=0)
    lists = sets["train"][:]
    flat = torchrank.RankingSet(lists.x, lists.labels, lists.offsets, index=lists.index, queries=lists.queries)
    module = RankingDataModule.from_sets(train=flat, val=flat, measures=["map"])
    with pytest.raises(ValueError, match=r"method=nca learns from the classes of points, and data=files has none"):
        fit(tmp_path, MetricBaseline(4, "nca"), module)
    fit(tmp_path, MetricBaseline(4), module)


@pytest.mark.parametrize(
    ("method", "package", "extra"), [("nca", "scikit-learn", "points"), ("lmnn", "metric-learn", "peers")]
)
def test_a_missing_library_is_named(method, package, extra, tmp_path, monkeypatch):
    imported = builtins.__import__

    def missing(name, *arguments):
        if name.partition(".")[0] in ("sklearn", "metric_learn"):
            raise ImportError(f"No module named {name!r}")
        return imported(name, *arguments)

    module = iris()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=rf"method={method} needs {package}: pip install 'torchrank\[{extra}\]'"):
        fit(tmp_path, MetricBaseline(4, method), module)


def test_images_have_the_distances_of_the_scores(tmp_path):
    ranker = MetricBaseline(4, transform="standard")
    points = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train = RankingSet(points, torch.ones(9), torch.tensor([0, 4, 9]), queries=points[:2].clone())
    trainer(tmp_path, 1, monitor=None).fit(ranker, datamodule=RankingDataModule.from_sets(train=train))
    rows, queries = ranker.embed(points), ranker.embed(points[:2])
    gaps = rows - queries.repeat_interleave(torch.tensor([4, 5]), dim=0)
    scores = ranker(points, train.offsets, queries=points[:2])
    torch.testing.assert_close(scores, -gaps.square().sum(1))
    torch.testing.assert_close(ranker.get_mahalanobis_matrix(), torch.eye(4, dtype=torch.float64))
