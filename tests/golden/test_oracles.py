"""The most violated ranking against every interleaving of small lists, a dynamic programme on long ones, and laws."""

import itertools

import numpy as np
import pytest
import torch

from torchrank.functional import oracles
from torchrank.functional.oracles.whole_list import average_precision_places

from . import mlr_reference as plain
from .reference import blocks

NEEDS_K = ("precision", "ndcg")
OPTIONS = [
    {"measure": "auc"},
    {"measure": "map"},
    {"measure": "mrr"},
    {"measure": "ndcg"},
    {"measure": "ndcg", "discount": "log2p1"},
    *({"measure": "precision", "k": k} for k in range(1, 13)),
    *({"measure": "ndcg", "k": k, "discount": d} for k in range(1, 13) for d in ("letor", "log2p1")),
]
FEW = [
    {"measure": "auc"},
    {"measure": "map"},
    {"measure": "mrr"},
    {"measure": "ndcg"},
    {"measure": "precision", "k": 3},
    {"measure": "ndcg", "k": 3},
    {"measure": "ndcg", "k": 10, "discount": "log2p1"},
]
LIST = ([0.3, -0.1, 0.7, 0.2], [1.0, 0.0, 0.0, 1.0])


def name_of(options):
    return "-".join(str(value) for value in options.values())


def many_lists(seed: int, largest: int = 5, ties: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists of all sizes P, N up to `largest` in shuffled order, at four scales of the scores; some of one class."""
    rng = np.random.default_rng(seed)
    sizes = [(p, n) for p in range(1, largest + 1) for n in range(1, largest + 1)]
    sizes = sizes * 4 + [(0, 0), (1, 0), (0, 1), (3, 0), (0, 4), (0, 0)] * 2
    scales = np.repeat([0.03, 0.3, 1.0, 10.0], largest * largest).tolist() + [1.0] * 12
    scores, labels, lengths = [], [], []
    for place in rng.permutation(len(sizes)):
        p, n = sizes[place]
        relevant = rng.permutation(np.arange(p + n) < p)
        drawn = rng.integers(-2, 3, p + n) / 4 if ties else rng.normal(size=p + n) + 0.3 * relevant
        scores.append(scales[place] * drawn)
        labels.append(relevant.astype(float))
        lengths.append(p + n)
    return np.concatenate(scores), np.concatenate(labels), np.concatenate([[0], np.cumsum(lengths)])


def oracle(scores, labels, offsets, dtype=torch.float64, **options):
    given = torch.tensor(scores, dtype=dtype), torch.tensor(labels, dtype=dtype), torch.tensor(offsets)
    c, loss = oracles.most_violated(*given, **options)
    assert c.shape == given[0].shape and loss.shape == (len(offsets) - 1,)
    assert torch.isfinite(c).all() and torch.isfinite(loss).all()
    return c.double().numpy(), loss.double().numpy()


def ranking_of(c: np.ndarray, scores: np.ndarray, relevant: np.ndarray, atol: float = 1e-9) -> tuple[int, ...]:
    """The ranking that coefficients belong to: whole counts, of one ranking, each class by falling scores."""
    good, bad = c[relevant], c[~relevant]
    pairs = len(good) * len(bad)
    counts = np.concatenate([good, -bad]) * pairs / 2
    whole = np.rint(counts).astype(int)
    assert abs(counts - whole).max() < atol and whole.min() >= 0
    before, behind = whole[: len(good)], whole[len(good) :]
    assert before.max() <= len(bad) and behind.max() <= len(good)
    assert sorted(behind, reverse=True) == [(before >= j).sum() for j in range(1, len(bad) + 1)]
    for part, rising in ((scores[relevant], before), (scores[~relevant], -behind)):
        ordered = rising[np.lexsort((rising, -part))]
        assert (ordered[1:] >= ordered[:-1]).all()
    return plain.from_counts(before.tolist(), len(bad))


def plain_options(options):
    return [options["measure"], options.get("k"), options.get("discount", "letor")]


def check(scores, labels, offsets, options, best, threshold=1.0, atol=1e-12):
    """Valid rankings, their own Delta, and the value of `best(scores, relevant, measure, k, discount)`."""
    c, loss = oracle(scores, labels, offsets, **options)
    for q, block in enumerate(blocks(offsets)):
        s, relevant = scores[block], labels[block] >= threshold
        if relevant.all() or not relevant.any():
            assert loss[q] == 0 and (c[block] == 0).all()
            continue
        ranked = ranking_of(c[block], s, relevant)
        assert abs(loss[q] - plain.loss_of(ranked, *plain_options(options))) < 1e-12
        assert abs(c[block].sum()) < 1e-12
        expected = best(s, relevant, *plain_options(options))
        assert abs(loss[q] - s @ c[block] - expected) < atol * max(1, abs(expected))


# --- the reference itself ---


def test_sorting_the_classes_loses_nothing():
    """Against all orders of the entries, on lists of at most five."""
    rng = np.random.default_rng(0)
    for p, n in ((1, 1), (2, 2), (3, 2), (1, 4), (2, 3)):
        scores, relevant = rng.normal(size=p + n), rng.permutation(np.arange(p + n) < p)
        for options in FEW:
            values = [
                plain.loss_of(tuple(relevant[list(y)].astype(int)), *plain_options(options))
                - scores @ plain.coefficients_of(list(y), relevant)
                for y in itertools.permutations(range(p + n))
            ]
            found = plain.brute_force(scores, relevant, *plain_options(options))
            assert found == pytest.approx(max(values), abs=1e-14)
            c, loss = plain.most_violated_plain(scores, relevant, *plain_options(options))
            assert loss - scores @ c == pytest.approx(found, abs=1e-14)
            if options["measure"] != "auc":
                assert plain.by_programme(scores, relevant, *plain_options(options)) == pytest.approx(found, abs=1e-14)


def test_measures_of_a_ranking_by_hand():
    ranked = (0, 1, 0, 1)
    assert plain.score_of(ranked, "auc") == pytest.approx(1 / 4)
    assert plain.score_of(ranked, "map") == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert plain.score_of(ranked, "mrr") == 1 / 2
    assert [plain.score_of(ranked, "precision", k) for k in (1, 2, 3, 4, 9)] == [0, 1 / 2, 1 / 2, 1, 1]
    assert plain.score_of(ranked, "ndcg", 3) == pytest.approx(1 / 2)
    assert plain.score_of(ranked, "ndcg") == pytest.approx((1 + 1 / 2) / 2)
    assert plain.score_of(ranked, "ndcg", 2, "log2p1") == pytest.approx(0.63092975 / 1.63092975)


# --- small lists: every interleaving ---


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_every_interleaving(options, ties):
    check(*many_lists(17 * ties + 1, ties=ties), options, plain.brute_force)


@pytest.mark.parametrize("options", FEW, ids=name_of)
@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_graded_labels(options, threshold):
    scores, labels, offsets = many_lists(3)
    grades = np.random.default_rng(4).integers(0, 4, len(labels)).astype(float)
    check(scores, grades, offsets, options | {"threshold": threshold}, plain.brute_force, threshold)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_a_batch_is_its_lists(options):
    """Alone, in another order, with `max_length` given, or in a batch with a far longer list."""
    scores, labels, offsets = many_lists(5, largest=3)
    c, loss = oracle(scores, labels, offsets, **options)
    found = oracle(scores, labels, offsets, max_length=int(np.diff(offsets).max()), **options)
    np.testing.assert_array_equal(c, found[0])
    np.testing.assert_array_equal(loss, found[1])
    for q in range(0, len(offsets) - 1, 7):
        block = slice(offsets[q], offsets[q + 1])
        alone = oracle(scores[block], labels[block], [0, offsets[q + 1] - offsets[q]], **options)
        np.testing.assert_allclose(alone[0], c[block], atol=1e-15)
        np.testing.assert_allclose(alone[1], loss[q], atol=1e-14)
    rng = np.random.default_rng(6)
    longer = np.concatenate([scores, rng.normal(size=90)]), np.concatenate([labels, rng.integers(0, 2, 90)])
    found = oracle(*longer, np.append(offsets, len(longer[0])), **options)
    np.testing.assert_allclose(found[0][: len(c)], c, atol=1e-15)
    np.testing.assert_allclose(found[1][:-1], loss, atol=1e-14)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_order_of_the_documents_and_shift_of_the_scores(options):
    scores, labels, offsets = many_lists(7)
    c, loss = oracle(scores, labels, offsets, **options)
    rng = np.random.default_rng(8)
    order = np.concatenate([block.start + rng.permutation(block.stop - block.start) for block in blocks(offsets)])
    moved = oracle(scores[order], labels[order], offsets, **options)
    np.testing.assert_allclose(moved[0], c[order], atol=1e-14)
    np.testing.assert_allclose(moved[1], loss, atol=1e-13)
    shifted = oracle(scores + np.repeat(rng.normal(size=len(loss)), np.diff(offsets)), labels, offsets, **options)
    np.testing.assert_allclose(shifted[0], c, atol=1e-12)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_no_list_and_empty_lists(options):
    for offsets in ([0], [0, 0], [0, 0, 0]):
        c, loss = oracle([], [], offsets, **options)
        assert len(c) == 0 and (loss == 0).all()


@pytest.mark.parametrize("level", [0.0, -3.7, 1e6])
@pytest.mark.parametrize("options", OPTIONS[:9] + OPTIONS[17:23], ids=name_of)
def test_equal_scores_have_the_largest_loss(options, level):
    scores, labels, offsets = many_lists(9)
    _, loss = oracle(np.full_like(scores, level), labels, offsets, **options)
    for found, block in zip(loss, blocks(offsets), strict=True):
        p, n = int(labels[block].sum()), int((1 - labels[block]).sum())
        worst = plain.all_losses(p, n, *plain_options(options)).max() if p and n else 0
        assert found == pytest.approx(worst, abs=1e-9 if level == 1e6 else 1e-12)


# --- long lists ---


def long_lists(seed: int, sizes, scale: float = 1.0, ties: bool = False):
    rng = np.random.default_rng(seed)
    relevant = [rng.permutation(np.arange(n) < p) for p, n in sizes]
    scores = [scale * (rng.normal(size=len(part)) + part) for part in relevant]
    scores = [np.round(part, 1) for part in scores] if ties else scores
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in relevant])])
    return np.concatenate(scores), np.concatenate(relevant).astype(float), offsets


LONG = [(60, 200), (1, 200), (199, 200), (6, 60), (30, 61), (100, 150), (2, 97)]


@pytest.mark.parametrize("scale", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("options", [{"measure": "precision", "k": 10}, *FEW[1:]], ids=name_of)
def test_dynamic_programme(options, scale):
    check(*long_lists(10, LONG, scale, ties=scale == 0.5), options, plain.by_programme, atol=1e-11)


@pytest.mark.parametrize("form", ["dense", "divide"])
def test_forms_of_map(form, monkeypatch):
    """Every place for every irrelevant entry, and by halves."""
    calls = []

    def places(merged):
        calls.append(form)
        return average_precision_places(merged, form)

    monkeypatch.setattr(oracles, "average_precision_places", places)
    check(*long_lists(10, LONG, 0.5), FEW[1], plain.by_programme, atol=1e-11)
    check(*many_lists(20, ties=True), FEW[1], plain.brute_force)
    assert len(calls) == 2


@pytest.mark.parametrize("scale", [0.05, 0.5, 5.0])
def test_auc_pair_by_pair(scale):
    """A pair is turned where its margin is below a half, whatever the other pairs do."""

    def best(scores, relevant, *_):
        margins = scores[relevant][:, None] - scores[~relevant]
        return np.maximum(0, 1 - 2 * margins).mean()

    check(*long_lists(11, LONG, scale), {"measure": "auc"}, best, atol=1e-11)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_better_than_random_rankings(options):
    """A thousand of them, from near the sorted one to any at all; y* and the sorted ranking too."""
    scores, labels, offsets = long_lists(12, [(40, 200)], 0.7)
    relevant, rng = labels == 1, np.random.default_rng(13)
    c, loss = oracle(scores, labels, offsets, **options)
    found = loss[0] - scores @ c
    orders = [np.argsort(-(scores + noise * rng.normal(size=200))) for noise in np.logspace(-2, 2, 1000)]
    orders += [np.argsort(-scores), np.argsort(-(scores + 100 * relevant)), np.argsort(-(scores - 100 * relevant))]
    bad = ~relevant
    for order in orders:
        ranked, place = relevant[order].astype(int), np.argsort(order)
        turned = place[relevant][:, None] > place[bad]
        margin = 2 * (turned * (scores[relevant][:, None] - scores[bad])).mean()
        assert plain.loss_of(tuple(ranked), *plain_options(options)) - margin <= found + 1e-12


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_single_precision(options):
    """The same scores in float32 and float64 have the same value; the ranking may differ where it does not matter."""
    scores, labels, offsets = long_lists(14, [*LONG, (100, 1000)], 0.7)
    scores = scores.astype(np.float32).astype(np.float64)
    c, loss = oracle(scores, labels, offsets, **options)
    c32, loss32 = oracle(scores, labels, offsets, torch.float32, **options)
    for q, block in enumerate(blocks(offsets)):
        value, single = loss[q] - scores[block] @ c[block], loss32[q] - scores[block] @ c32[block]
        assert single == pytest.approx(value, rel=1e-5)
        ranking_of(c32[block], scores[block], labels[block] == 1, atol=0.02)


# --- the loss ---


def hinge(scores, labels, offsets, **options):
    given = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    values = oracles.structured_hinge(given, torch.tensor(labels), torch.tensor(offsets), **options)
    return given, values


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_structured_hinge(options):
    """loss - <scores, c>, with gradient -c for every list alone; 0 with a graph where there is one class."""
    scores, labels, offsets = many_lists(15)
    c, loss = oracle(scores, labels, offsets, **options)
    given, values = hinge(scores, labels, offsets, **options)
    expected = [loss[q] - scores[block] @ c[block] for q, block in enumerate(blocks(offsets))]
    np.testing.assert_allclose(values.detach(), expected, atol=1e-12)
    assert values.min() >= 0
    weights = torch.linspace(-1, 2, len(values), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weights * values).sum(), given)
    np.testing.assert_allclose(gradient, -c * np.repeat(weights.numpy(), np.diff(offsets)), atol=1e-15)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_one_class_is_zero_with_a_graph(options):
    for labels in ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]):
        given, values = hinge([0.1, 0.2, -0.3], labels, [0, 1, 3], **options)
        assert (values == 0).all() and values.requires_grad
        values.sum().backward()
        assert (given.grad == 0).all()
    _, values = hinge([], [], [0], **options)
    assert values.shape == (0,) and values.requires_grad


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_gradient_by_differences(options):
    scores, labels, offsets = long_lists(16, [(3, 9), (8, 20), (1, 5)], 0.3)
    given, values = hinge(scores, labels, offsets, **options)
    (gradient,) = torch.autograd.grad(values.sum(), given)
    direction = np.random.default_rng(17).normal(size=len(scores))
    up, down = (hinge(scores + sign * 1e-6 * direction, labels, offsets, **options)[1].sum() for sign in (1, -1))
    assert (up - down).item() / 2e-6 == pytest.approx(float(gradient.numpy() @ direction), abs=1e-8)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_bound_and_convexity(options):
    """Above the Delta of the sorted ranking, and convex along a line of scores."""
    scores, labels, offsets = many_lists(18)
    other = scores + np.random.default_rng(19).normal(size=len(scores))
    here, there, middle = (
        hinge(s, labels, offsets, **options)[1].detach().numpy() for s in (scores, other, (scores + other) / 2)
    )
    assert (middle <= (here + there) / 2 + 1e-12).all()
    for value, block in zip(here, blocks(offsets), strict=True):
        ranked = tuple(labels[block][np.argsort(-scores[block])].astype(int))
        if 0 < sum(ranked) < len(ranked):
            assert value >= plain.loss_of(ranked, *plain_options(options)) - 1e-12


@pytest.mark.parametrize("function", ["most_violated", "structured_hinge"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"measure": "accuracy"}, "accuracy"),
        ({"measure": "precision"}, "k"),
        ({"measure": "precision", "k": 0}, "k"),
        ({"measure": "ndcg", "k": 0}, "k"),
        ({"measure": "ndcg", "k": -2}, "-2"),
        ({"measure": "ndcg", "discount": "none"}, "none"),
    ],
    ids=str,
)
def test_options_are_checked(function, options, words):
    given = torch.tensor(LIST[0]), torch.tensor(LIST[1]), torch.tensor([0, 4])
    with pytest.raises(ValueError, match=words):
        vars(oracles)[function](*given, **options)
