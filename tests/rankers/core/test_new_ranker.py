"""docs/new_ranker.md: the ranker on that page is run as it stands there."""

import numpy as np
import pytest
import torch

from tests.docs.pages import blocks, module_of
from tests.rankers.small import FEATURES, data, lists, trainer

LogisticRanker = module_of("new_ranker.md").LogisticRanker


def test_it_has_at_most_50_lines():
    assert len([line for line in blocks("new_ranker.md")[0].splitlines() if line.strip()]) <= 50


@pytest.mark.peers
def test_it_finds_the_weights_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    train = lists(0)
    ranker = LogisticRanker(FEATURES, l2=0.5).fit(train, lists(1))
    rows = ranker.transform(train.x.float(), train.offsets)
    model = linear.LogisticRegression(C=2.0, fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(rows.numpy().astype(np.float64), train.labels.numpy() >= 1)
    np.testing.assert_allclose(ranker.weight.numpy(), model.coef_[0], atol=1e-6)
    assert ranker.certificate.proved


def test_it_is_cut_and_resumed(tmp_path):
    whole, cut, resumed = (LogisticRanker(FEATURES) for _ in range(3))
    trainer(tmp_path / "whole", 50).fit(whole, datamodule=data())
    trainer(tmp_path / "cut", 2).fit(cut, datamodule=data())
    assert not torch.equal(cut.weight, whole.weight)
    again = trainer(tmp_path / "cut", 50)
    again.fit(resumed, datamodule=data(), ckpt_path=tmp_path / "cut/last.ckpt", weights_only=True)
    assert torch.equal(resumed.weight, whole.weight) and resumed.converged
    test = lists(2)
    loaded = LogisticRanker.load_from_checkpoint(tmp_path / "cut/last.ckpt", weights_only=True)
    assert torch.equal(loaded(test.x, test.offsets), resumed(test.x, test.offsets))
