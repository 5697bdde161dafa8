"""WARP rounds of LGMML, and the weights of lists that were not trained on."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback

from tests.functional import plain
from tests.rankers.local import WEIGHTS, fit, moved, plain_scores, rows_of, split, with_queries
from tests.rankers.small import lists, trainer
from torchrank import RankingDataModule
from torchrank.solvers.local_metrics.warp import sampled_warp

# ---- WARP rounds -----------------------------------------------------------------------------------------------------


class Watch(Callback):
    """Weights after every round."""

    def __init__(self):
        self.weights = []

    def on_train_epoch_end(self, trainer, ranker):
        self.weights.append(ranker.weights.clone())


def mean_loss(ranker, weights, **options):
    """Mean over the lists with different labels of the WARP loss, from scores typed again."""
    train = lists(0)
    rows, losses = split(rows_of(ranker, train), train.offsets), []
    for place, (own, labels) in enumerate(zip(rows, split(train.labels.tolist(), train.offsets), strict=True)):
        if len(set(labels)) > 1:
            mine = weights if weights.ndim == 1 else weights[place]
            scores = plain_scores(ranker, own, mine.tolist(), "distance") * float(ranker.scale)
            losses.append(plain.warp_loss(scores.tolist(), labels, **options))
    return np.mean(losses)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
def test_full_rounds_lower_the_mean_loss_along_its_gradient(tmp_path, weights):
    watch = Watch()
    ranker = fit(tmp_path, precision="64-true", weights=weights, rounds=5, lr=0.2, callbacks=[watch])
    assert (watch.weights[0] == 1).all()  # the first round ends with all weights 1
    losses = [mean_loss(ranker, one) for one in watch.weights]
    assert all(b < a for a, b in pairwise(losses))
    for before, after in pairwise(watch.weights):
        assert (after >= 0).all() and (after - before).abs().max() <= 0.2 * before.max() * (1 + 1e-12)
    if weights == "shared":  # numerical slope against the first move
        width, start = 1e-6, watch.weights[0]
        steps = width * torch.eye(len(start), dtype=torch.float64)
        slope = [(mean_loss(ranker, start + s) - mean_loss(ranker, start - s)) / (2 * width) for s in steps]
        move = (start - watch.weights[1]).numpy()
        np.testing.assert_allclose(move / np.linalg.norm(move), slope / np.linalg.norm(slope), atol=1e-5)


def test_kernel_values_have_deviation_one(tmp_path):
    ranker, train = fit(tmp_path, precision="64-true", rounds=2), lists(0)
    ones = np.eye(4)
    phi = np.stack([plain_scores(ranker, rows_of(ranker, train), one, "distance") for one in ones], 1)
    assert float(ranker.scale) == pytest.approx(1 / phi.std(0).mean(), rel=1e-9)


def test_only_lists_with_different_labels_move_their_row(tmp_path):
    ranker, train = fit(tmp_path, weights="per_query", rounds=4), lists(0)
    still = (ranker.weights == 1).all(1).numpy()
    assert still[train.pairs == 0].all() and not still.all() and ranker.weights.shape == (12, 4)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
@pytest.mark.parametrize("nonneg", [True, False])
def test_sampled_rounds(tmp_path, monkeypatch, weights, nonneg):
    steps, watch = [], Watch()

    def recorded(*given, lr, **options):
        steps.extend(lr.tolist())
        return sampled_warp(*given, lr=lr, **options)

    monkeypatch.setattr("torchrank.rankers.lgmml.ranker.sampled_warp", recorded)
    change = {"kernel": "demo", "tau": "max", "weights": weights, "nonneg": nonneg}  # nearer is worse: weights fall
    ranker = fit(tmp_path, mode="sgd", rounds=5, lr=6.0, callbacks=[watch], **change)
    assert (watch.weights[0] == 1).all() and not torch.equal(watch.weights[0], watch.weights[1])
    assert bool((ranker.weights >= 0).all()) == nonneg
    lists_of_round = int((lists(0).pairs > 0).sum())
    assert len(steps) == 4 * lists_of_round  # one for each list with different labels
    for number, step in enumerate(steps):
        decay = 1 - number // lists_of_round / 4
        assert step == pytest.approx(6 * decay / (lists_of_round if weights == "shared" else 1), rel=1e-6)


def test_sampled_rounds_refuse_several_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("pytorch_lightning.Trainer.world_size", 2)
    monkeypatch.setattr("torchrank.data.datamodule.RankingDataModule._place", lambda self: (0, 1))
    with pytest.raises(ValueError, match=r"mode=sgd .* in one process: use mode=full on several"):
        fit(tmp_path, mode="sgd", rounds=2)


def test_sampled_rounds_need_scores_linear_in_the_weights(tmp_path):
    with pytest.raises(ValueError, match="mode=sgd needs scores linear in the weights"):
        fit(tmp_path, mode="sgd", kernel="localized", rounds=2)
    ranker = with_queries(tmp_path, mode="sgd", kernel="localized", rounds=3, anchor="best")  # linear with queries
    assert (ranker.weights != 1).any() and (ranker.weights >= 0).all()


def test_perfectly_ranked_lists_end_the_fit(tmp_path):
    train = lists(0)
    train.labels.zero_()
    train.labels[train.x[:, 0] > 0] = 1
    train.x[:, 0] = torch.where(train.x[:, 0] > 0, 50.0, -50.0) + train.x[:, 0]
    ranker = fit(tmp_path, moved(train=train), rounds=20, margin=1e-6, kappa=30.0)
    assert ranker.converged and (ranker.weights == 1).all()


# ---- weights of lists that were not trained on -----------------------------------------------------------------------


def profile(rows):
    return np.concatenate((rows.mean(0), rows.std(0)))


def plain_weights(ranker, mode, rows, train_rows):
    """Weights of one list: from the learned values and the documents of the list alone."""
    values = ranker.weights.double().numpy()
    if mode == "shared":
        return values
    if mode == "mean":
        return values.mean(0)
    if mode == "ones":
        return np.ones(values.shape[1])
    if mode == "knn":
        profiles = np.stack([profile(one) for one in train_rows])
        mean, deviation = profiles.mean(0), profiles.std(0)
        gaps = np.linalg.norm((profiles - profile(rows)) / deviation, axis=1)
        assert np.isfinite(mean).all()
        return values[np.argsort(gaps, kind="stable")[:10]].mean(0)
    phi = np.stack([plain_scores(ranker, rows, one, "distance") for one in np.eye(len(values))], 1)
    return np.log1p(np.exp(values @ np.concatenate(([1.0], phi.mean(0), rows.mean(0)))))


@pytest.mark.parametrize("mode", WEIGHTS)
def test_weights_of_other_lists(tmp_path, mode):
    ranker, train, test = fit(tmp_path, rounds=4, precision="64-true", **WEIGHTS[mode]), lists(0), lists(2)
    train_rows = split(rows_of(ranker, train), train.offsets)
    expected = np.concatenate(
        [
            plain_scores(ranker, rows, plain_weights(ranker, mode, rows, train_rows), "distance")
            for rows in split(rows_of(ranker, test), test.offsets)
        ]
    )
    assert (ranker.weights != ranker.weights[:1]).any()
    np.testing.assert_allclose(ranker(test.x, test.offsets), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "ones", "knn"])
def test_rows_of_training_queries_are_used_only_where_asked_for(tmp_path, mode):
    ranker, train = fit(tmp_path, rounds=4, **WEIGHTS[mode]), lists(0)
    query = torch.arange(12)
    scores = ranker(train.x, train.offsets)
    assert torch.equal(ranker(train.x, train.offsets, query=query.flip(0)), scores)
    learned = ranker.training_scores(train.x, train.offsets, query)
    assert not torch.allclose(learned, scores)
    rows = split(rows_of(ranker, train), train.offsets)
    expected = np.concatenate(
        [
            plain_scores(ranker, own, weights.tolist(), "distance")
            for own, weights in zip(rows, ranker.weights, strict=True)
        ]
    )
    np.testing.assert_allclose(learned, expected, rtol=1e-4, atol=1e-4)
    swapped = ranker.training_scores(train.x, train.offsets, query.flip(0))
    assert not torch.allclose(swapped, learned)


@pytest.mark.parametrize("change", [*WEIGHTS.values(), {"kernel": "localized"}, {"mode": "sgd"}], ids=str)
def test_shuffled_test_labels_change_no_score(tmp_path, change):
    ranker = fit(tmp_path, rounds=3, **change)
    before = {name: tensor.clone() for name, tensor in ranker.state_dict().items()}
    wrong = lists(2)
    wrong.labels = wrong.labels[torch.randperm(len(wrong.labels), generator=torch.Generator().manual_seed(3))]
    scores, runner = {}, trainer(tmp_path)
    for name, test in (("right", lists(2)), ("wrong", wrong)):
        seen = []

        def watched(split, batch, seen=seen):
            seen.append(type(ranker).evaluation_scores(ranker, split, batch))
            return seen[-1]

        ranker.evaluation_scores = watched
        module = RankingDataModule.from_sets(train=lists(0), val=lists(1), test=test, batch_documents=40)
        runner.test(ranker, datamodule=module, verbose=False)
        scores[name] = torch.cat([*seen, *runner.predict(ranker, datamodule=module)])
    assert torch.equal(scores["right"], scores["wrong"])
    half = len(scores["right"]) // 2
    torch.testing.assert_close(scores["right"][half:], scores["right"][:half], rtol=1e-5, atol=1e-5)  # predict = score
    for name, tensor in ranker.state_dict().items():
        assert torch.equal(tensor, before[name]), name
