"""Gaussian classes: their distribution, the lists made of them, and that a metric per class beats one for all."""

import hashlib

import numpy as np
import pytest
from scipy import linalg, stats

from torchrank.data.datamodule import RankingDataModule
from torchrank.data.synthetic.gaussian import load_gaussian, make_classes


def fingerprint(part) -> str:
    arrays = (part.x, part.queries, part.relevance.classes)
    return hashlib.sha256(b"".join(array.numpy().tobytes() for array in arrays)).hexdigest()


def test_centres_and_axes_have_their_distributions():
    world = make_classes(400, 10, 10, np.random.default_rng(0))
    assert stats.kstest(world.centres.ravel() / 2.2, "norm").pvalue > 0.01
    axes = np.sqrt(np.linalg.eigvalsh(world.factors @ world.factors.transpose(0, 2, 1)))
    log_uniform = stats.uniform(np.log(0.3), np.log(4.0) - np.log(0.3))
    assert stats.kstest(np.log(axes).ravel(), log_uniform.cdf).pvalue > 0.01


def test_rotations_are_uniform():
    """Entries of a uniform rotation: the square is beta distributed and both signs are equally likely."""
    factors = make_classes(600, 6, 0, np.random.default_rng(1)).factors
    q = factors / np.linalg.norm(factors, axis=1, keepdims=True)
    np.testing.assert_allclose(np.einsum("cij,cik->cjk", q, q), np.tile(np.eye(6), (600, 1, 1)), atol=1e-12)
    for row, column in ((0, 0), (1, 1), (5, 5), (0, 3), (4, 2)):
        entry = q[:, row, column]
        assert stats.kstest(entry**2, stats.beta(0.5, 2.5).cdf).pvalue > 0.01
        assert stats.binomtest(int((entry > 0).sum()), len(entry)).pvalue > 0.01


def test_points_have_the_moments_of_their_class():
    world = make_classes(3, 4, 2, np.random.default_rng(2))
    x, classes = world.draw(20_000, np.random.default_rng(3))
    assert x.dtype == np.float32 and x.shape == (60_000, 6)
    for number in range(3):
        rows, expected = x[classes == number], np.zeros((6, 6))
        expected[:4, :4], expected[4:, 4:] = world.factors[number] @ world.factors[number].T, 4 * np.eye(2)
        assert len(rows) == 20_000
        np.testing.assert_allclose(rows.mean(0), [*world.centres[number], 0, 0], atol=0.12)
        np.testing.assert_allclose(np.cov(rows.T), expected, atol=0.05 * np.abs(expected).max())


def test_every_query_ranks_the_training_points():
    sets = load_gaussian(centres=3, informative=4, noise=1, train_per_class=5, queries_per_class=2, seed=7)
    corpus, classes = sets["train"].x, sets["train"].relevance.classes.tolist()
    assert corpus.shape == (15, 5) and sorted(classes) == sorted([0, 1, 2] * 5) != classes  # in random order
    for name, part in sets.items():
        assert part.x is corpus and (part.queries is corpus) == (name == "train")
        for place in range(len(part)):
            batch, own = part[place], part.relevance.classes[place].item()
            rows = [row for row in range(15) if name != "train" or row != place]
            assert batch.index.tolist() == rows
            assert batch.labels.tolist() == [float(classes[row] == own) for row in rows]
            assert batch.labels.sum() == (4 if name == "train" else 5) and batch.num_grades == 2
            assert batch.num_pairs == batch.labels.sum() * (1 - batch.labels).sum()
    assert [len(part) for part in sets.values()] == [15, 6, 6]
    ids = [query for part in sets.values() for query in part.query_ids]
    assert ids == [f"1-{number}" for number in range(27)]


def test_same_seed_same_bytes_and_every_fold_a_new_world():
    prints = {name: fingerprint(part) for name, part in load_gaussian(seed=3).items()}
    assert prints == {name: fingerprint(part) for name, part in load_gaussian(seed=3).items()}
    others = [load_gaussian(seed=4), load_gaussian(seed=3, fold=2), load_gaussian(seed=2, fold=3)]
    assert len({*prints.values(), *(fingerprint(part) for sets in others for part in sets.values())}) == 12


def test_more_queries_leave_the_training_points_as_they_are():
    few, many = load_gaussian(centres=4), load_gaussian(centres=4, queries_per_class=50)
    assert fingerprint(few["train"]) == fingerprint(many["train"])
    assert (len(few["val"]), len(many["val"])) == (32, 200)
    assert load_gaussian(centres=4, train_per_class=7)["train"].x.shape == (28, 20)
    assert load_gaussian(centres=4, informative=3, noise=0)["train"].num_features == 3


def test_it_is_a_data_set_of_the_datamodule():
    data = RankingDataModule("gaussian", centres=5, fold=2, seed=1)
    data.setup()
    assert fingerprint(data.sets["test"]) == fingerprint(load_gaussian(centres=5, fold=2, seed=1)["test"])
    assert data.num_features == 20 and data.sets["test"].num_grades == 2


def metric(positives: np.ndarray, negatives: np.ndarray) -> np.ndarray:
    """S^-1/2 (S^1/2 D S^1/2)^1/2 S^-1/2 of the scatter over all pairs, scaled to mean eigenvalue 1, ridge 0.05."""
    differences = positives[:, None] - positives, positives[:, None] - negatives
    scatters = (np.einsum("pni,pnj->ij", each, each) for each in differences)
    s, d = (each * len(each) / np.trace(each) + 0.05 * np.eye(len(each)) for each in scatters)  # up to a factor
    root = linalg.sqrtm(s).real
    inverse = np.linalg.inv(root)
    return inverse @ linalg.sqrtm(root @ d @ root).real @ inverse


def mean_average_precision(distances: np.ndarray, relevant: np.ndarray) -> float:
    hits = np.take_along_axis(relevant, np.argsort(distances, axis=1), 1)
    precision = np.cumsum(hits, 1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(1) / hits.sum(1)).mean())


def test_a_metric_for_each_class_beats_one_for_all():
    """Each query under the geometric mean metric of its own class, an upper bound, against the classes' mean metric."""
    sets = load_gaussian(centres=10)
    x, queries = sets["train"].x.double().numpy(), sets["test"].queries.double().numpy()
    classes, own = sets["train"].relevance.classes.numpy(), sets["test"].relevance.classes.numpy()
    metrics = np.stack([metric(x[classes == each], x[classes != each]) for each in range(10)])
    differences, relevant = x[None] - queries[:, None], classes[None] == own[:, None]
    euclid, shared, local = (
        mean_average_precision(np.einsum("qni,qij,qnj->qn", differences, each, differences, optimize=True), relevant)
        for each in (np.tile(np.eye(20), (80, 1, 1)), np.tile(metrics.mean(0), (80, 1, 1)), metrics[own])
    )
    assert euclid + 0.05 < shared < local - 0.1


@pytest.mark.parametrize(
    "option", [{"centres": 1}, {"informative": 0}, {"noise": -1}, {"train_per_class": 1}, {"queries_per_class": 0},
               {"fold": 0}]
)  # fmt: skip
def test_sizes_without_a_meaning_are_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=rf"data\.{name} must be >= {value + 1}, got {value}"):
        load_gaussian(**option)
