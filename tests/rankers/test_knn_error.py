"""The measure knn_error@k in a run: of data with classes, by rank of the scores, refused elsewhere."""

import numpy as np
import pytest

from tests.rankers.small import data, trainer
from torchrank import GMML, LambdaRank, RankingDataModule
from torchrank.data.sources.points import load_points


def iris(**options) -> RankingDataModule:
    sets = load_points("iris", validate="leave_one_out", **options)
    return RankingDataModule.from_sets(**sets, measures=["knn_error@1", "map", "knn_error@5"], batch_documents=1000)


def test_a_run_measures_what_scikit_learn_measures(tmp_path):
    """One neighbour has no vote: nothing is left to convention. Leave-one-out by hand on the training points."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    module, ranker = iris(), GMML(4)
    runner = trainer(tmp_path, 1, monitor=None)
    runner.fit(ranker, datamodule=module)
    runner.test(ranker, datamodule=module, verbose=False)
    lists = {name: module.ready(name) for name in ("train", "test")}
    corpus, queries = (part.queries @ ranker.factors[0].float() for part in lists.values())
    classes, own = (part.classes.numpy() for part in lists.values())
    nearest = neighbors.KNeighborsClassifier(1).fit(corpus.numpy(), classes).predict(queries.numpy())
    assert ranker.measured["test"]["default"]["measures"]["knn_error@1"] == pytest.approx(np.mean(nearest != own))
    distances = ((corpus[:, None] - corpus) ** 2).sum(2).fill_diagonal_(float("inf"))
    left_out = np.mean(classes[distances.argmin(1).numpy()] != classes)
    assert ranker.measured["val"]["default"]["measures"]["knn_error@1"] == pytest.approx(left_out)
    assert set(ranker.measured["test"]["default"]["per_query"]["knn_error@5"].tolist()) <= {0.0, 1.0}


def test_data_without_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"val lists of data=files have none: it is a measure of data=points"):
        trainer(tmp_path, 1).fit(LambdaRank(6), datamodule=data(measures=["ndcg@10", "knn_error@3"]))
