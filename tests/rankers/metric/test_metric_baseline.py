"""Metrics of other libraries: the same neighbours as these libraries find themselves."""

import builtins
import warnings

import numpy as np
import pytest
import torch

from tests.rankers.small import lists
from torchrank import DataError, MetricBaseline, RankingSet
from torchrank.data.sources.points import load_points
from torchrank.rankers.core.evaluation import SplitMeasures

OPTIONS = {"euclidean": None, "nca": None, "lmnn": {"max_iter": 60, "n_neighbors": 2}, "itml": {"max_iter": 20}}


def iris() -> dict[str, RankingSet]:
    return load_points("iris", validate="leave_one_out", test_fraction=0.7)


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


@pytest.mark.peers
@pytest.mark.parametrize("method", OPTIONS)
def test_the_nearest_point_is_that_of_the_library(method):
    for name in ("sklearn",) if method == "nca" else ("sklearn", "metric_learn"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(name)
    train, test = (iris()[name] for name in ("train", "test"))
    ranker = MetricBaseline(4, method, seed=3, options=OPTIONS[method]).fit(train)
    x, queries = (lists.to("cpu", ranker.transform).queries.double().numpy() for lists in (train, test))
    embed = theirs(method, x, train.classes.numpy())
    distances = ((embed(queries)[:, None] - embed(x)) ** 2).sum(2)
    wrong = train.classes.numpy()[distances.argmin(1)] != test.classes.numpy()
    batch, measures = test[:], SplitMeasures(["knn_error@1"], lists=test)
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    measures.update(scores, batch)
    assert measures.conclude()[0]["default"]["measures"]["knn_error@1"] == pytest.approx(wrong.mean(), abs=1e-9)
    np.testing.assert_allclose(scores.view(distances.shape), -distances, rtol=1e-3, atol=1e-3 * distances.max())
    torch.testing.assert_close(ranker.get_mahalanobis_matrix(), ranker.components.T @ ranker.components)


@pytest.mark.peers
def test_the_seed_and_the_options_are_those_of_the_library():
    pytest.importorskip("sklearn")
    sets, options = iris(), {"n_components": 2, "init": "random", "max_iter": 3}
    one, same, other = (MetricBaseline(4, "nca", seed, options=options).fit(sets["train"]) for seed in (0, 0, 1))
    assert one.components.shape == (2, 4) and torch.equal(one.components, same.components)
    assert not torch.equal(one.components, other.components)
    with pytest.raises(ValueError, match=r"options of method=nca: .*unexpected keyword argument 'foo'"):
        MetricBaseline(4, "nca", options={"foo": 1}).fit(sets["train"])
    again = MetricBaseline(4, "nca", options=options)
    again.load_state_dict(one.state_dict())  # of fewer components than features
    batch = sets["test"][:]
    given = {"index": batch.index, "queries": batch.queries}
    assert torch.equal(again(batch.x, batch.offsets, **given), one(batch.x, batch.offsets, **given))


def test_what_cannot_be_learned_is_said():
    with pytest.raises(ValueError, match="unknown method='mmc': choose one of euclidean, nca, lmnn, itml"):
        MetricBaseline(4, "mmc")
    with pytest.raises(DataError, match="MetricBaseline learns distances from query vectors"):
        MetricBaseline(6).fit(lists(0))
    batch = load_points("iris", val_fraction=0)["train"][:]
    flat = RankingSet(batch.x, batch.labels, batch.offsets, index=batch.index, queries=batch.queries)
    with pytest.raises(DataError, match="method=nca learns from the classes of points, but this data has none"):
        MetricBaseline(4, "nca").fit(flat)
    MetricBaseline(4).fit(flat)


@pytest.mark.parametrize(
    ("method", "package", "extra"), [("nca", "scikit-learn", "points"), ("lmnn", "metric-learn", "peers")]
)
def test_a_missing_library_is_named(method, package, extra, monkeypatch):
    imported = builtins.__import__

    def missing(name, *arguments):
        if name.partition(".")[0] in ("sklearn", "metric_learn"):
            raise ImportError(f"No module named {name!r}")
        return imported(name, *arguments)

    train = iris()["train"]
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=rf"method={method} needs {package}: pip install 'torchrank-ltr\[{extra}\]'"):
        MetricBaseline(4, method).fit(train)


def test_images_have_the_distances_of_the_scores():
    ranker = MetricBaseline(4, transform="standard")
    points = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train = RankingSet(points, torch.ones(9), torch.tensor([0, 4, 9]), queries=points[:2].clone())
    ranker.fit(train)
    rows, queries = ranker.embed(points), ranker.embed(points[:2])
    gaps = rows - queries.repeat_interleave(torch.tensor([4, 5]), dim=0)
    scores = ranker(points, train.offsets, queries=points[:2])
    torch.testing.assert_close(scores, -gaps.square().sum(1))
    torch.testing.assert_close(ranker.get_mahalanobis_matrix(), torch.eye(4, dtype=torch.float64))
