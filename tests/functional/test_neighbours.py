"""kNN errors against a vote typed plainly, and the laws of functions on lists."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchrank.functional as F

CUTS = [1, 2, 3, 4, 7, 50]


def batch(seed, lists=60, longest=9, kinds=4):
    """Lists of 0..longest entries with equal scores; classes are any whole numbers."""
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], draw.integers(0, longest + 1, lists).cumsum()])
    names = draw.choice(1000, kinds, replace=False) - 500
    scores = draw.integers(-3, 4, offsets[-1]) / 2
    parts = scores, draw.choice(names, offsets[-1]), offsets, draw.choice(names, lists)
    return tuple(torch.tensor(part) for part in parts)


def plain_error(scores, classes, own, k):
    """Neighbours come one by one; a class wins that has most votes, the first to have come where several do."""
    near = [classes[i] for i in sorted(range(len(scores)), key=lambda i: -scores[i])[:k]]
    votes = Counter(near)
    winners = [name for name in near if votes[name] == max(votes.values())]
    return float(winners[0] != own) if near else float("nan")


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_plain_vote(seed):
    scores, classes, offsets, own = batch(seed, kinds=2 + seed)
    found = F.knn_error(scores, classes, offsets, own, k=CUTS)
    lists = list(itertools.pairwise(offsets.tolist()))
    for column, k in enumerate(CUTS):
        expected = [
            plain_error(scores[a:b].tolist(), classes[a:b].tolist(), int(own[q]), k) for q, (a, b) in enumerate(lists)
        ]
        np.testing.assert_array_equal(found[:, column], expected)
        np.testing.assert_array_equal(F.knn_error(scores, classes, offsets, own, k=k), expected)


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
    assert F.knn_error(scores, classes, offsets, own, k=CUTS, max_length=9).equal(whole) or whole.isnan().any()
    for count in (0, 1):
        assert F.knn_error(scores[:0], classes[:0], offsets[:1].repeat(count + 1), own[:count], k=3).shape == (count,)


def test_evaluate_gives_the_same_from_one_sort_in_pieces(monkeypatch):
    scores, classes, offsets, own = batch(8)
    labels = (classes == own.repeat_interleave(offsets.diff())).float()
    given = {"classes": classes, "query_classes": own, "measures": ["knn_error@3", "map", "knn_error@1"]}
    whole = F.evaluate(scores, labels, offsets, **given)
    assert list(whole) == given["measures"]
    np.testing.assert_array_equal(whole["knn_error@3"], F.knn_error(scores, classes, offsets, own, k=3))
    monkeypatch.setattr("torchrank.functional.conventions.ENTRIES_AT_ONCE", 20)
    for name, values in F.evaluate(scores, labels, offsets, **given).items():
        np.testing.assert_array_equal(values, whole[name])


def test_bad_input_is_refused():
    scores, classes, offsets, own = batch(9)
    with pytest.raises(ValueError, match="positive integer"):
        F.knn_error(scores, classes, offsets, own, k=0)
    with pytest.raises(ValueError, match="positive integer"):
        F.knn_error(scores, classes, offsets, own, k=1.0)
    for k in (None, [], [1, None]):
        with pytest.raises(ValueError, match="give the number of neighbours that vote"):
            F.knn_error(scores, classes, offsets, own, k=k)
    expected = F.knn_error(scores, classes, offsets, own, k=3)
    torch.testing.assert_close(F.knn_error(scores, classes, offsets, own, k=np.int64(3)), expected, equal_nan=True)
    with pytest.raises(ValueError, match="60 lists need as many query classes"):
        F.knn_error(scores, classes, offsets, own[:5], k=3)
    with pytest.raises(ValueError, match=r"knn_error@3 is an error of classes: give classes"):
        F.evaluate(scores, classes.float().abs(), offsets, measures=["knn_error@3"])
    with pytest.raises(ValueError, match="unknown measure 'knn_error'"):
        F.evaluate(scores, classes, offsets, measures=["knn_error"])
    with pytest.raises(ValueError, match="convention 'letor' does not define 'knn_error@3'"):
        F.evaluate(scores, classes, offsets, measures=["knn_error@3"], convention="letor")


class Waits(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.name().startswith(("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")):
            self.found.append(function.name())
        return function(*arguments, **(options or {}))


def test_any_device_without_synchronisation():
    parts = batch(10)
    on_meta = F.knn_error(*(part.to("meta") for part in parts), k=CUTS, max_length=9)
    assert on_meta.device.type == "meta" and on_meta.shape == (60, len(CUTS))
    with Waits() as waits:
        F.knn_error(*parts, k=CUTS, max_length=9)
    assert waits.found == []
    assert F.knn_error(parts[0].half(), *parts[1:], k=3).dtype == torch.float32
