"""The three queries of Figure 1: their clouds as drawn, and that directions tell what means and divergences do not."""

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

from torchrank import RankingDataModule, SVMMap
from torchrank.data.synthetic.clouds import draw_cloud, load_clouds, make_clouds
from torchrank.functional import most_violated

WORLDS = range(1, 21)


def parts(sets):
    """Rows and labels of q1, q2 and q3."""
    train, test = sets["train"], sets["test"]
    rows = [train.x, *test.x.split(test.lengths.tolist())]
    labels = [train.labels, *test.labels.split(test.lengths.tolist())]
    return [part.double().numpy() for part in rows], [part.numpy() for part in labels]


def test_two_clouds_share_directions_and_two_a_mean():
    for seed in range(5):
        means, bases = make_clouds(6, np.random.default_rng(seed))
        np.testing.assert_allclose(bases.transpose(0, 2, 1) @ bases, np.tile(np.eye(6), (3, 1, 1)), atol=1e-12)
        assert not means[0].any() and np.abs(means[2]).max() < 2 < np.abs(means[1]).max()
        assert np.array_equal(bases[0], bases[1])
        assert bases[0][:, 0] @ bases[2][:, 0] == pytest.approx(np.cos(75 / 180 * np.pi), abs=1e-12)


def test_a_cloud_has_its_moments():
    mean, basis = np.arange(4.0), np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    x, labels = draw_cloud(mean, basis, 40_000, np.random.default_rng(1))
    assert x.dtype == labels.dtype == np.float32 and labels.sum() == 12_000
    assert 0.28 < labels[:20_000].mean() < 0.32  # not in the order of their labels
    expected = basis @ np.diag(np.linspace(3, 0.3, 4) ** 2) @ basis.T
    for label, centre in ((0, mean), (1, mean + 6 * basis[:, 0])):
        rows = x[labels == label]
        np.testing.assert_allclose(rows.mean(0), centre, atol=0.1)
        np.testing.assert_allclose(np.cov(rows.T), expected, atol=0.25)


def test_sets_and_worlds():
    sets = load_clouds(num_features=4, documents=10)
    assert [(name, list(part.query_ids), part.lengths.tolist()) for name, part in sets.items()] == [
        ("train", ["q1"], [10]), ("val", ["q1 again"], [10]), ("test", ["q2", "q3"], [10, 10])
    ]  # fmt: skip
    assert all(part.num_features == 4 and part.num_grades == 2 for part in sets.values())
    again, others = load_clouds(num_features=4, documents=10), [load_clouds(fold=2), load_clouds(seed=1)]
    assert all(torch.equal(sets[name].x, again[name].x) for name in sets)
    assert len({float(part["train"].x.sum()) for part in (load_clouds(), *others)}) == 3


@pytest.mark.parametrize("option", [{"num_features": 1}, {"documents": 1}, {"fold": 0}], ids=str)
def test_options_that_make_no_clouds_are_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=rf"data\.{name} must be >= {value + 1}, got {value}"):
        load_clouds(**option)


def average_precision(scores, labels):
    hits = labels[np.argsort(-scores, kind="stable")]
    return (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits == 1].mean()


def gaussian(rows):
    spread = np.cov(rows.T, bias=True)
    width = len(spread)
    return rows.mean(0), 0.9 * spread + (0.1 * np.trace(spread) / width + 1e-6) * np.eye(width)


def plain_distances(x, y):
    """1 - eq. 5 at four directions, symmetric KL, 1 - Bhattacharyya's kernel, distance of the means."""
    axes = [np.linalg.svd(rows - rows.mean(0), full_matrices=False)[2][:4] for rows in (x, y)]
    (m1, s1), (m2, s2) = gaussian(x), gaussian(y)
    gap, middle, (i1, i2) = m1 - m2, (s1 + s2) / 2, (np.linalg.inv(s1), np.linalg.inv(s2))
    kl = (np.trace(i2 @ s1) + np.trace(i1 @ s2) - 2 * len(m1) + gap @ (i1 + i2) @ gap) / 4
    half = [np.linalg.slogdet(matrix)[1] / 2 for matrix in (middle, s1, s2)]
    bound = gap @ np.linalg.solve(middle, gap) / 8 + half[0] - (half[1] + half[2]) / 2
    return 1 - np.abs((axes[0] * axes[1]).sum(1)).mean(), kl, 1 - np.exp(-bound), np.linalg.norm(gap)


def test_directions_choose_q2_in_all_worlds_and_the_other_distances_in_none():
    found = []
    for fold in WORLDS:
        (q1, q2, q3), _ = parts(load_clouds(fold=fold))
        found.append([np.less(a, b) for a, b in zip(plain_distances(q1, q2), plain_distances(q1, q3), strict=True)])
    assert np.sum(found, axis=0).tolist() == [20, 0, 0, 0]


def svm_map(sets, weight):
    """Objective (worlds,) of SVM-map with C = 1 on the training list of every world, and a subgradient (worlds, D)."""
    x = torch.stack([each["train"].x for each in sets]).double()  # (W, n, D)
    labels, offsets = torch.cat([each["train"].labels for each in sets]), x.shape[1] * torch.arange(len(x) + 1)
    scores = torch.einsum("wnd,wd->wn", x, weight)
    coefficients, loss = most_violated(scores.flatten(), labels, offsets, measure="map")
    pull = torch.einsum("wn,wnd->wd", coefficients.view_as(scores), x)
    return weight.square().sum(1) / 2 + loss - (pull * weight).sum(1), weight - pull


def fit_all(sets, steps=150):
    """Plain subgradient steps for all worlds at once: the best weights (worlds, D) and their objective (worlds,)."""
    weight = best = torch.zeros(len(sets), 10, dtype=torch.float64)
    lowest = torch.full((len(sets),), torch.inf, dtype=torch.float64)
    for step in range(steps):
        objective, gradient = svm_map(sets, weight)
        best = torch.where((objective < lowest)[:, None], weight, best)
        lowest = torch.minimum(objective, lowest)
        weight = weight - gradient / (step + 10)
    return best, lowest


def test_the_model_of_q1_ranks_q2_better_in_all_worlds():
    worlds = [load_clouds(fold=fold) for fold in WORLDS]
    for sets, weight in zip(worlds, fit_all(worlds)[0].numpy(), strict=True):
        _, q2, q3 = (average_precision(x @ weight, y) for x, y in zip(*parts(sets), strict=True))
        assert q2 > q3 + 0.05


def test_the_ranker_of_the_experiment_agrees():
    data = RankingDataModule("clouds", fold=2)
    data.setup()
    ranker = SVMMap(10, C=1.0, eps=0.003, transform="none")
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=50, limit_val_batches=0, **quiet)
    trainer.fit(ranker, datamodule=data)
    weight, lowest = fit_all([data.sets])
    assert svm_map([data.sets], ranker.weight[None])[0].item() == pytest.approx(lowest.item(), abs=0.01)
    assert torch.cosine_similarity(ranker.weight, weight[0], 0) > 0.97
