"""The measure knn_error@k in a run: of data with classes, by rank of the scores, refused elsewhere."""

import numpy as np
import pytest

from tests.rankers.small import data, measured, trainer
from torchrank import GMML, DataError, LambdaRank, RankingDataModule, RankingEvaluation
from torchrank.data.sources.points import load_points

MEASURES = ["knn_error@1", "map", "knn_error@5"]


@pytest.mark.peers
def test_a_run_measures_what_scikit_learn_measures(tmp_path):
    """One neighbour has no vote: nothing is left to convention. Leave-one-out by hand on the training points."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    sets, ranker = load_points("iris", validate="leave_one_out"), GMML(4)
    module = RankingDataModule.from_sets(**sets, batch_documents=1000)
    runner = trainer(tmp_path, 1, monitor=None, callbacks=[RankingEvaluation(MEASURES)])
    runner.fit(ranker, datamodule=module)
    runner.test(ranker, datamodule=module, verbose=False)
    lists = {name: sets[name].to("cpu", ranker.transform) for name in ("train", "test")}
    corpus, queries = (part.queries @ ranker.factors[0].float() for part in lists.values())
    classes, own = (part.classes.numpy() for part in lists.values())
    nearest = neighbors.KNeighborsClassifier(1).fit(corpus.numpy(), classes).predict(queries.numpy())
    assert measured(runner, "test")["measures"]["knn_error@1"] == pytest.approx(np.mean(nearest != own))
    assert runner.callback_metrics["test/knn_error@1"] == pytest.approx(np.mean(nearest != own))
    distances = ((corpus[:, None] - corpus) ** 2).sum(2).fill_diagonal_(float("inf"))
    left_out = np.mean(classes[distances.argmin(1).numpy()] != classes)
    assert measured(runner, "val")["measures"]["knn_error@1"] == pytest.approx(left_out)
    assert set(measured(runner, "test")["per_query"]["knn_error@5"].tolist()) <= {0.0, 1.0}


def test_data_without_classes_is_refused(tmp_path):
    evaluation = RankingEvaluation(["ndcg@10", "knn_error@3"])
    with pytest.raises(DataError, match=r"knn_error@k .* these lists have none: measure it on data=points"):
        trainer(tmp_path, 1, callbacks=[evaluation]).fit(LambdaRank(6), datamodule=data())
