"""kNN errors against a vote typed plainly, and the laws of functions on lists."""

import itertools

import numpy as np
import pytest
import torch

from tests.laws.test_functions import Synchronisations
from tests.reference.measures import blocks
from tests.reference.mlr import vote
from torchrank import functional as F

CUTS = [1, 2, 3, 4, 5, 7, 10, 50]


def batch(seed, lists=60, longest=9, kinds=4, ties=True):
    """Lists of 0..longest entries; classes are any integers, and that of a query may be missing in its list."""
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], draw.integers(0, longest + 1, lists).cumsum()])
    names = draw.choice(1000, kinds, replace=False) - 500
    scores = draw.integers(-3, 4, offsets[-1]) / 2 if ties else draw.normal(size=offsets[-1])
    parts = scores, draw.choice(names, offsets[-1]), offsets, draw.choice(names, lists)
    return tuple(torch.tensor(part) for part in parts)


def expected(scores, classes, offsets, own, k):
    """nan for an empty list."""
    scores, classes, parts = scores.double().numpy(), classes.numpy(), blocks(offsets)
    return [
        float(vote(scores[part], classes[part], k) != int(mine)) if part.stop > part.start else float("nan")
        for part, mine in zip(parts, own, strict=True)
    ]


def test_the_vote_by_hand():
    assert vote(np.array([0.1, 0.9, 0.5, 0.4]), np.array([2, 0, 1, 1]), 1) == 0
    assert vote(np.array([0.1, 0.9, 0.5, 0.4]), np.array([2, 0, 1, 1]), 2) == 0  # 0 and 1 have one each
    assert vote(np.array([0.1, 0.9, 0.5, 0.4]), np.array([2, 0, 1, 1]), 3) == 1
    assert vote(np.array([0.5, 0.5]), np.array([3, 1]), 1) == 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_a_plain_vote(seed, ties, dtype):
    scores, classes, offsets, own = batch(seed, kinds=2 + seed, longest=15, ties=ties)
    scores = scores.to(dtype)
    together = F.knn_error(scores, classes, offsets, own, k=CUTS)
    assert together.shape == (60, len(CUTS)) and together.dtype == dtype
    for column, k in enumerate(CUTS):
        errors = expected(scores, classes, offsets, own, k)
        np.testing.assert_array_equal(together[:, column], errors)
        np.testing.assert_array_equal(F.knn_error(scores, classes, offsets, own, k=k), errors)


@pytest.mark.peers
def test_equals_scikit_learn_with_an_odd_vote_of_two_classes():
    """Two classes and an odd k have no ties of the vote, where scikit-learn decides otherwise."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    draw = np.random.default_rng(0)
    (x, queries), (y, own) = (draw.normal(size=(n, 3)) for n in (80, 30)), (draw.integers(0, 2, n) for n in (80, 30))
    scores = -((queries[:, None] - x) ** 2).sum(2)
    parts = scores.ravel(), np.tile(y, 30), np.arange(0, 2401, 80), own
    for k in (1, 5, 21):
        expected = neighbors.KNeighborsClassifier(k).fit(x, y).predict(queries) != own
        np.testing.assert_array_equal(F.knn_error(*map(torch.tensor, parts), k=k), expected)


def test_permuting_lists_and_batches_of_one():
    scores, classes, offsets, own = batch(7)
    whole = F.knn_error(scores, classes, offsets, own, k=CUTS)
    alone = [
        F.knn_error(scores[a:b], classes[a:b], torch.tensor([0, b - a]), own[q : q + 1], k=CUTS)
        for q, (a, b) in enumerate(itertools.pairwise(offsets.tolist()))
    ]
    torch.testing.assert_close(torch.cat(alone), whole, rtol=0, atol=0, equal_nan=True)
    lists = F.Lists(offsets, len(scores), longest=9)
    assert F.knn_error(scores, classes, lists, own, k=CUTS).equal(whole) or whole.isnan().any()
    for count in (0, 1):
        nothing = scores[:0], classes[:0], offsets[:1].repeat(count + 1), own[:count]
        assert F.knn_error(*nothing, k=3).shape == (count,) and F.knn_error(*nothing, k=[1, 3]).shape == (count, 2)


def test_evaluate_gives_the_same_from_one_sort_in_pieces():
    scores, classes, offsets, own = batch(8)
    labels = (classes == own.repeat_interleave(offsets.diff())).float()
    given = {"classes": classes, "query_classes": own, "measures": ["knn_error@3", "map", "knn_error@1"]}
    whole = F.evaluate(scores, labels, offsets, **given)
    assert list(whole) == given["measures"]
    np.testing.assert_array_equal(whole["knn_error@3"], F.knn_error(scores, classes, offsets, own, k=3))
    times = 450_000 // len(scores)  # more entries than are ranked at once
    many = {"group": offsets.diff().repeat(times), "classes": classes.repeat(times), "query_classes": own.repeat(times)}
    for name, values in F.evaluate(scores.repeat(times), labels.repeat(times), **given | many).items():
        np.testing.assert_array_equal(values, whole[name].repeat(times))


def test_bad_input_is_refused():
    scores, classes, offsets, own = batch(9)
    for k in (0, -1, [1, 0], 1.0):
        with pytest.raises(ValueError, match="k must be a positive integer"):
            F.knn_error(scores, classes, offsets, own, k=k)
    for k in (None, [], [1, None]):
        with pytest.raises(ValueError, match="k must be the number of neighbours that vote, or several, got"):
            F.knn_error(scores, classes, offsets, own, k=k)
    expected = F.knn_error(scores, classes, offsets, own, k=3)
    torch.testing.assert_close(F.knn_error(scores, classes, offsets, own, k=np.int64(3)), expected, equal_nan=True)
    with pytest.raises(ValueError, match=r"query_classes must have one class per list, \(60,\), got \(5,\)"):
        F.knn_error(scores, classes, offsets, own[:5], k=3)
    with pytest.raises(ValueError, match=r"knn_error@3 compares classes: give classes \(N,\)"):
        F.evaluate(scores, classes.float().abs(), offsets, measures=["knn_error@3"])
    with pytest.raises(ValueError, match="convention='letor' does not define 'knn_error@3'"):
        F.evaluate(scores, classes.abs(), offsets, measures=["knn_error@3"], convention="letor")


def test_any_device_without_synchronisation():
    parts = batch(10)
    on_meta = F.knn_error(*(part.to("meta") for part in parts), k=CUTS)
    assert on_meta.device.type == "meta" and on_meta.shape == (60, len(CUTS))
    with Synchronisations() as waits:
        F.knn_error(*parts, k=CUTS)
    assert waits.found == []
    assert F.knn_error(parts[0].half(), *parts[1:], k=3).dtype == torch.float32
