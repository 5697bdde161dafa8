"""The most violated ranking against every interleaving of small lists, a dynamic program on long ones, and laws."""

import itertools

import numpy as np
import pytest
import torch

from tests.rankers.small import FEATURES, lists
from tests.reference import mlr as plain
from tests.reference.measures import blocks
from torchrank import NeuralRanker
from torchrank import functional as F

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
    c, loss = F.most_violated(*given, **options)
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
    for seed in range(3):
        check(*many_lists(17 * ties + seed, ties=ties), options, plain.brute_force)


@pytest.mark.parametrize("options", FEW, ids=name_of)
@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_graded_labels(options, threshold):
    scores, labels, offsets = many_lists(3)
    grades = np.random.default_rng(4).integers(0, 4, len(labels)).astype(float)
    check(scores, grades, offsets, options | {"threshold": threshold}, plain.brute_force, threshold)


@pytest.mark.parametrize("options", FEW, ids=name_of)
def test_a_batch_is_its_lists(options):
    """Alone, in another order, with a `Lists` given, or in a batch with a far longer list."""
    scores, labels, offsets = many_lists(5, largest=3)
    c, loss = oracle(scores, labels, offsets, **options)
    found = F.most_violated(torch.tensor(scores), torch.tensor(labels), F.Lists.of(offsets, labels=labels), **options)
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


def drawn_lists(seed, lengths, share=0.3, scale=1.0):
    """Long lists as tensors, a share of the entries relevant."""
    rng = np.random.default_rng(seed)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    labels = torch.tensor((rng.random(sum(lengths)) < share).astype(int))
    return torch.tensor(rng.normal(size=sum(lengths)) * scale) + scale * labels, labels, offsets


@pytest.mark.parametrize("discount", ["letor", "log2p1"])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_the_whole_ndcg_equals_the_table_over_all_places(discount, scale):
    """The same problem by the dynamic program of NDCG@k: a list among longer ones has its whole length within k."""
    scores, labels, offsets = drawn_lists(3, [40, 25, 33, 41], scale=scale)
    whole = F.structured_hinge(scores, labels, offsets, measure="ndcg", discount=discount)
    table = F.structured_hinge(scores, labels, offsets, measure="ndcg", discount=discount, k=40)
    torch.testing.assert_close(whole[:3], table[:3], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [0.05, 0.5, 5.0])
def test_auc_pair_by_pair(scale):
    """A pair is turned where its margin is below a half, whatever the other pairs do."""

    def best(scores, relevant, *_):
        margins = scores[relevant][:, None] - scores[~relevant]
        return np.maximum(0, 1 - 2 * margins).mean()

    check(*long_lists(11, LONG, scale), {"measure": "auc"}, best, atol=1e-11)


@pytest.mark.parametrize("scale", [0.01, 0.7])
@pytest.mark.parametrize("options", [*FEW, {"measure": "precision", "k": 20}], ids=name_of)
def test_better_than_random_rankings(options, scale):
    """A thousand of them, from near the sorted one to any at all; y* and the sorted ranking too."""
    scores, labels, offsets = long_lists(12, [(40, 200)], scale)
    relevant, rng = labels == 1, np.random.default_rng(13)
    c, loss = oracle(scores, labels, offsets, **options)
    found = loss[0] - scores @ c
    orders = [np.argsort(-(scores + noise * rng.normal(size=200))) for noise in scale * np.logspace(-2, 2, 1000)]
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
    values = F.structured_hinge(given, torch.tensor(labels), torch.tensor(offsets), **options)
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


# --- numbers at the edge ---


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("measure", "k"), [("auc", None), ("map", None), ("mrr", None), ("precision", 3), ("ndcg", 3)])
@pytest.mark.parametrize("lengths", [[3, 0, 3200, 1, 7] + [4, 9] * 40, [0, *range(400, 800)]], ids=["one long", "many"])
def test_lists_that_go_in_parts(lengths, measure, k, threads):
    """Lists of similar length go together, and not too many at once: nothing changes."""
    scores, labels, offsets = drawn_lists(8, lengths)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        coefficients, loss = F.most_violated(scores, labels, offsets, measure=measure, k=k)
        hinge = F.structured_hinge(scores, labels, offsets, measure=measure, k=k)
    finally:
        torch.set_num_threads(before)
    for number, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
        if number % 7 == 1 or last - first == 3200:
            alone = scores[first:last], labels[first:last], torch.tensor([0, last - first])
            own, own_loss = F.most_violated(*alone, measure=measure, k=k)
            torch.testing.assert_close(coefficients[first:last], own, rtol=0, atol=1e-12)
            torch.testing.assert_close(loss[number], own_loss[0], rtol=0, atol=1e-12)
            torch.testing.assert_close(hinge[number], own_loss[0] - (own * alone[0]).sum(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("measure", "k"), [("auc", None), ("map", None), ("mrr", None), ("precision", 3), ("ndcg", 3),
                                            ("ndcg", None)])  # fmt: skip
def test_an_irrelevant_entry_far_below_costs_no_digits(measure, k):
    """Some people mask entries with scores of -1e30: never inverted, such an entry may be anywhere."""
    scores, labels, offsets = drawn_lists(9, [40, 31, 17])
    scores, labels, offsets = scores / 10, torch.cat([labels, labels.new_zeros(1)]), torch.tensor([0, 40, 71, 89])
    labels[75:88] = 0  # most of the last list
    near, far = (torch.cat([scores[:75], scores.new_full((14,), low)]) for low in (-1e4, -1e30))
    for function in (F.structured_hinge, lambda *lists, **options: F.most_violated(*lists, **options)[0]):
        expected, found = (function(these, labels, offsets, measure=measure, k=k) for these in (near, far))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("measure", ["auc", "map", "mrr", "ndcg"])
def test_a_long_list_with_a_score_that_is_no_number(measure, wrong):
    scores, labels, offsets = drawn_lists(3, [3000, 40])
    scores[5] = wrong
    hinge = F.structured_hinge(scores, labels, offsets, measure=measure)
    fine = F.structured_hinge(scores[3000:], labels[3000:], torch.tensor([0, 40]), measure=measure)
    assert hinge[0].isnan() and hinge[1] == fine[0]


def test_a_score_that_is_no_number_has_no_slopes():
    scores = torch.tensor([1.0, torch.nan, 0.0, 2.0], requires_grad=True)
    hinge = F.structured_hinge(scores, torch.tensor([1, 0, 1, 0]), torch.tensor([0, 2, 4]))
    hinge.sum().backward()
    assert hinge.isnan().tolist() == [True, False] and scores.grad.isnan().tolist() == [True, True, False, False]


def test_values_of_mrr_are_compared_to_the_last_digit():
    scores = torch.tensor([0.0, 0.0, -(1 / 6 + 1e-8)], dtype=torch.float64)  # b = 1 and b = 2 differ by 1e-8
    hinge = F.structured_hinge(scores, torch.tensor([1, 0, 0]), torch.tensor([0, 3]), measure="mrr")
    torch.testing.assert_close(hinge, torch.tensor([0.5], dtype=torch.float64), rtol=0, atol=1e-15)


def test_infinite_scores_are_refused():
    scores, labels, offsets = drawn_lists(0, [4, 5])
    scores[1], scores[4] = torch.inf, -torch.inf
    with pytest.raises(ValueError, match="scores must be finite, got 2 infinite ones of 9"):
        F.most_violated(scores, labels, offsets)


@pytest.mark.parametrize("function", [F.most_violated, F.structured_hinge])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "accuracy"}, "unknown measure='accuracy': choose one of auc, precision, map, mrr, ndcg"),
        ({"measure": "precision"}, "measure='precision' needs the cut-off k"),
        ({"measure": "precision", "k": 0}, "k must be a positive integer"),
        ({"measure": "ndcg", "k": 0}, "k must be a positive integer"),
        ({"measure": "ndcg", "k": -2}, "got -2"),
        ({"measure": "ndcg", "discount": "none"}, "unknown discount='none': choose one of log2p1, letor"),
        ({"measure": "ndcg", "discount": len}, "unknown discount="),  # there is no exact oracle for any function
        ({"threshold": "sweep"}, "threshold must be a number, the lowest label of a relevant entry, got 'sweep'"),
    ],
    ids=str,
)
def test_options_are_checked(function, options, message):
    given = torch.tensor([0.3, -0.1, 0.7, 0.2]), torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 4])
    with pytest.raises(ValueError, match=message):
        function(*given, **options)


def test_offsets_are_integers():
    with pytest.raises(ValueError, match=r"offsets must be a vector of integers, got float32"):
        F.most_violated(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([0.0, 2.0]))


def test_a_neural_ranker_learns_by_it():
    train = lists(0)
    ranker = NeuralRanker(FEATURES, loss="structured_hinge", loss_options={"measure": "ndcg", "k": 10})
    optimizer = torch.optim.Adam(ranker.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(ranker.loss(train[:]).mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
