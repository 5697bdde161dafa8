"""Every loss trains the neural ranker."""

import pytest

from tests.rankers.small import FEATURES, lists, trainer
from torchrank import NeuralRanker, RankingDataModule
from torchrank.functional import LOSSES, ndcg

CHOICES = [(name, {}) for name in LOSSES] + [("warp", {"margin": 0.5, "negatives": "zero"})]


@pytest.mark.parametrize(("loss", "options"), CHOICES)
def test_it_comes_close_to_the_rule_that_made_the_grades(tmp_path, loss, options):
    train, val, test = (lists(seed, num_lists=150) for seed in range(3))
    data = RankingDataModule.from_sets(train=train, val=val, test=test, batch_documents=200)
    ranker = NeuralRanker(FEATURES, "linear", loss, loss_options=options, lr=0.05)
    trainer(tmp_path, max_epochs=10).fit(ranker, data)
    batch = test[:]
    scores, rule = ranker(batch.x, batch.offsets), batch.x[:, 1] - 0.5 * batch.x[:, 3]
    found, best = (ndcg(one, batch.labels, batch.offsets).nanmean() for one in (scores, rule))
    assert found > best - 0.02
