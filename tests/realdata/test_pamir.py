"""PAMIR on MQ2008, read from TORCHRANK_DATA."""

import os

import pytest

from torchrank import PAMIR, RankingDataModule
from torchrank.functional import evaluate

ROOT = os.environ.get("TORCHRANK_DATA")
pytestmark = pytest.mark.skipif(ROOT is None, reason="set TORCHRANK_DATA to the folder that holds MQ2008")


@pytest.mark.parametrize("minibatch", [1, 32])
def test_pamir_reaches_the_level_of_linear_rankers(tmp_path, minibatch):
    """Mean of the fold means, letor convention; default options, 20 rounds, the last state, nothing chosen."""
    found = []
    for fold in range(1, 6):
        module = RankingDataModule("mq2008", root=ROOT, cache_dir=tmp_path, fold=fold)
        module.setup()
        ranker = PAMIR(46, rounds=20, minibatch=minibatch).fit(module.sets["train"])
        test = module.sets["test"]
        scores, measures = ranker(test.x, test.offsets), ["ndcg@5", "map"]
        found.append(evaluate(scores, test.labels, test.offsets, measures=measures, convention="letor"))
    mean = {measure: sum(float(part[measure].mean()) for part in found) / 5 for measure in ("ndcg@5", "map")}
    assert mean["ndcg@5"] >= 0.47 and mean["map"] >= 0.47, mean
