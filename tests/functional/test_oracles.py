"""The oracles against all interleavings of the two classes, random rankings and each other."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch

import torchrank.functional as F
from tests.rankers.small import FEATURES, lists
from torchrank import NeuralRanker
from torchrank.functional.oracles import HOST_NUMBERS
from torchrank.functional.oracles.merged import merge
from torchrank.functional.oracles.whole_list import average_precision_places

MEASURES = ["auc", "precision", "map", "mrr", "ndcg"]
CUTS = [("auc", None), ("map", None), ("mrr", None), ("ndcg", None)]
CUTS += [(measure, k) for measure in ("precision", "ndcg") for k in (1, 2, 3, 4, 5, 7, 10, 30)]


def score_of(hits, measure, k, discount="letor"):
    """Value of a ranking given as 0/1 in rank order, from the definition of the measure."""
    hits, relevant = list(hits), sum(hits)
    places = [rank for rank, hit in enumerate(hits, 1) if hit]
    if measure == "auc":
        right = sum(not later for rank in places for later in hits[rank:])
        return right / (relevant * (len(hits) - relevant))
    if measure == "precision":
        return sum(hits[:k]) / min(k, relevant)
    if measure == "map":
        return sum(sum(hits[:rank]) / rank for rank in places) / relevant
    if measure == "mrr":
        return 1 / places[0]
    k = len(hits) if k is None else k
    weight = {"letor": lambda rank: 1 / math.log2(max(rank, 2)), "log2p1": lambda rank: 1 / math.log2(rank + 1)}[
        discount
    ]
    ideal = sum(weight(rank) for rank in range(1, min(k, relevant) + 1))
    return sum(weight(rank) for rank in places if rank <= k) / ideal


@functools.cache
def rankings(num_relevant, num_irrelevant, measure, k, discount):
    """All interleavings: which pairs (i, j) are the wrong way round, `(Y, P, N)`, and the losses `(Y,)`."""
    wrong, losses = [], []
    size = num_relevant + num_irrelevant
    for places in itertools.combinations(range(size), num_relevant):
        others = [place for place in range(size) if place not in places]
        wrong.append([[other < place for other in others] for place in places])
        losses.append(1 - score_of([place in places for place in range(size)], measure, k, discount))
    return np.array(wrong, dtype=float), np.array(losses)


def largest(scores, relevant, measure, k, discount="letor"):
    """max over all rankings of loss - 2/(P N) sum of s_i - s_j over the wrong pairs."""
    best, others = -np.sort(-scores[relevant]), -np.sort(-scores[~relevant])
    if len(best) == 0 or len(others) == 0:
        return 0.0
    wrong, losses = rankings(len(best), len(others), measure, k, discount)
    gaps = best[:, None] - others
    return (losses - 2 * (wrong * gaps).sum((1, 2)) / gaps.size).max()


def draw_lists(seed, lists=40, most=5):
    """Lists of at most 5 + 5 entries, some with ties or all scores equal, some of one class, some empty."""
    draw = np.random.default_rng(seed)
    parts = []
    for _ in range(lists):
        labels = draw.permutation([1] * draw.integers(0, most + 1) + [0] * draw.integers(0, most + 1))
        scores = draw.normal(size=len(labels)) * draw.choice([0, 0.03, 0.3, 1, 10])
        if draw.random() < 0.4:
            scores = scores.round(1)
        parts.append((scores + draw.normal(), labels))
    offsets = np.concatenate([[0], np.cumsum([len(labels) for _, labels in parts])])
    scores, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    return torch.tensor(scores), torch.tensor(labels, dtype=torch.int64), torch.tensor(offsets)


def split(offsets, *values):
    return [tuple(np.asarray(value)[a:b] for value in values) for a, b in itertools.pairwise(offsets.tolist())]


def check_ranking(scores, relevant, coefficients, loss, measure, k, discount="letor"):
    """The coefficients are those of a ranking, and the loss is the loss of that ranking."""
    best, others = coefficients[relevant], coefficients[~relevant]
    if len(best) == 0 or len(others) == 0:
        assert not coefficients.any() and loss == 0
        return
    pairs = len(best) * len(others)
    b = best[np.argsort(-scores[relevant], kind="stable")] * pairs / 2
    inverted = -others[np.argsort(-scores[~relevant], kind="stable")] * pairs / 2
    counts = np.sort(b).round().astype(int)
    np.testing.assert_allclose(np.sort(b), counts, atol=1e-9)
    assert counts.min() >= 0 and counts.max() <= len(others)
    np.testing.assert_allclose(-np.sort(-inverted), [(counts >= j).sum() for j in range(1, len(others) + 1)], atol=1e-9)
    places = np.arange(len(counts)) + counts
    hits = np.isin(np.arange(len(relevant)), places)
    assert loss == pytest.approx(1 - score_of(hits, measure, k, discount), abs=1e-12)


@pytest.mark.parametrize(("measure", "k"), CUTS)
@pytest.mark.parametrize("seed", range(8))
def test_the_value_is_that_of_all_interleavings(measure, k, seed):
    scores, labels, offsets = draw_lists(seed)
    for given in ({}, {"max_length": 12}):
        coefficients, loss = F.most_violated(scores, labels, offsets, measure=measure, k=k, **given)
        hinge = F.structured_hinge(scores, labels, offsets, measure=measure, k=k, **given)
        parts = split(offsets, scores, labels == 1, coefficients)
        for (s, relevant, c), lost, value in zip(parts, loss.tolist(), hinge.tolist(), strict=True):
            expected = largest(s, relevant, measure, k)
            assert lost - (c * (s - s.mean() if len(s) else s)).sum() == pytest.approx(expected, abs=1e-12)
            assert value == pytest.approx(expected, abs=1e-12)
            check_ranking(s, relevant, c, lost, measure, k)


@pytest.mark.parametrize(("measure", "k"), [("ndcg", None), ("ndcg", 1), ("ndcg", 3), ("ndcg", 6)])
@pytest.mark.parametrize("threshold", [1, 2])
def test_the_other_discount_and_threshold(measure, k, threshold):
    scores, labels, offsets = draw_lists(20)
    labels = labels * threshold + (threshold == 2) * (1 - labels)  # 2 and 1, where only 2 is relevant
    options = {"measure": measure, "k": k, "discount": "log2p1", "threshold": threshold}
    coefficients, loss = F.most_violated(scores, labels, offsets, **options)
    hinge = F.structured_hinge(scores, labels, offsets, **options)
    parts = split(offsets, scores, labels >= threshold, coefficients)
    for (s, relevant, c), lost, value in zip(parts, loss.tolist(), hinge.tolist(), strict=True):
        assert value == pytest.approx(largest(s, relevant, measure, k, "log2p1"), abs=1e-12)
        check_ranking(s, relevant, c, lost, measure, k, "log2p1")


def long_lists(seed, lengths, share=0.3, scale=1.0):
    draw = np.random.default_rng(seed)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    labels = torch.tensor((draw.random(sum(lengths)) < share).astype(int))
    return torch.tensor(draw.normal(size=sum(lengths)) * scale) + scale * labels, labels, offsets


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_average_precision_by_halving_equals_the_dense_form(seed, share):
    scores, labels, offsets = long_lists(seed, [200, 1, 65, 64, 63, 130, 0, 3], share, scale=10.0 ** (seed - 4))
    merged = merge(scores, labels > 0, offsets)
    values = []
    for form in ("divide", "dense", "auto"):
        inversions, loss = average_precision_places(merged, form)
        psi = (inversions * merged.scale * merged.scores()).sum(1)
        values.append(torch.where(merged.scale[:, 0] > 0, loss, 0) - psi)
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(values[0], values[2], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("discount", ["letor", "log2p1"])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_the_whole_ndcg_equals_the_table_over_all_places(discount, scale):
    """The same problem by the dynamic programme of NDCG@k: a list among longer ones has its whole length within k."""
    scores, labels, offsets = long_lists(3, [40, 25, 33, 41], scale=scale)
    whole = F.structured_hinge(scores, labels, offsets, measure="ndcg", discount=discount)
    table = F.structured_hinge(scores, labels, offsets, measure="ndcg", discount=discount, k=40, max_length=50)
    torch.testing.assert_close(whole[:3], table[:3], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("measure", "k"), [("auc", None), ("precision", 20), ("map", None), ("mrr", None), ("ndcg", 15)]
)
@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_no_random_ranking_is_better(measure, k, scale):
    scores, labels, offsets = long_lists(5, [200], scale=scale)
    found = F.structured_hinge(scores, labels, offsets, measure=measure, k=k).item()
    draw, order, relevant = np.random.default_rng(0), np.argsort(-scores.numpy()), labels.numpy() > 0
    s, size = scores.numpy(), relevant.sum()
    for number in range(1000):
        noise = draw.choice([0, 0.1, 1, 10]) * scale
        order = np.argsort(-(s + noise * draw.normal(size=200) - draw.choice([0, 0.5, 2]) * scale * relevant))
        hits = relevant[order]
        inverted = np.where(hits, np.cumsum(~hits), np.cumsum(hits) - size)
        value = 1 - score_of(hits.tolist(), measure, k) - 2 * (inverted * s[order]).sum() / (size * (200 - size))
        assert found >= value - 1e-12, number


@pytest.mark.parametrize("measure", MEASURES)
def test_the_gradient_is_minus_the_coefficients(measure):
    scores, labels, offsets = draw_lists(30)
    coefficients, _ = F.most_violated(scores, labels, offsets, measure=measure, k=3)
    scores.requires_grad_()
    weights = torch.linspace(1, 2, len(offsets) - 1, dtype=torch.float64)
    (F.structured_hinge(scores, labels, offsets, measure=measure, k=3) * weights).sum().backward()
    assert torch.equal(scores.grad, -coefficients * weights.repeat_interleave(offsets.diff()))
    for part in coefficients.split(offsets.diff().tolist()):
        assert part.sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_low_precision(measure):
    scores, labels, offsets = long_lists(6, [1000, 400])
    exact = F.structured_hinge(scores.float().double(), labels, offsets, measure=measure, k=10)
    low = F.structured_hinge(scores.float(), labels, offsets, measure=measure, k=10)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("measure", "k"), [("auc", None), ("map", None), ("mrr", None), ("precision", 3), ("ndcg", 3)])
@pytest.mark.parametrize("lengths", [[3, 0, 3200, 1, 7] + [4, 9] * 40, [0, *range(400, 800)]], ids=["one long", "many"])
def test_lists_that_go_in_parts(lengths, measure, k, threads):
    """Lists of similar length go together, and not too many at once: nothing changes."""
    scores, labels, offsets = long_lists(8, lengths)
    assert len(lengths) * max(lengths) > HOST_NUMBERS
    assert (len(lengths) * max(lengths) > 4 * len(scores)) == (3200 in lengths)
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
    with pytest.raises(ValueError, match=f"longest list has {max(lengths)}"):
        F.most_violated(scores, labels, offsets, measure=measure, k=k, max_length=290)


@pytest.mark.parametrize(("measure", "k"), [("auc", None), ("map", None), ("mrr", None), ("precision", 3), ("ndcg", 3),
                                            ("ndcg", None)])  # fmt: skip
def test_an_irrelevant_entry_far_below_costs_no_digits(measure, k):
    """Some people mask entries with scores of -1e30: never inverted, such an entry may be anywhere."""
    scores, labels, offsets = long_lists(9, [40, 31, 17])
    scores, labels, offsets = scores / 10, torch.cat([labels, labels.new_zeros(1)]), torch.tensor([0, 40, 71, 89])
    labels[75:88] = 0  # most of the last list
    near, far = (torch.cat([scores[:75], scores.new_full((14,), low)]) for low in (-1e4, -1e30))
    for function in (F.structured_hinge, lambda *lists, **options: F.most_violated(*lists, **options)[0]):
        expected, found = (function(these, labels, offsets, measure=measure, k=k) for these in (near, far))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("measure", ["auc", "map", "mrr", "ndcg"])
def test_a_long_list_with_a_score_that_is_no_number(measure, wrong):
    scores, labels, offsets = long_lists(3, [3000, 40])
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
    scores, labels, offsets = draw_lists(0)
    scores[1], scores[4] = torch.inf, -torch.inf
    with pytest.raises(ValueError, match=rf"2 of {len(scores)} scores are infinite"):
        F.most_violated(scores, labels, offsets)


def test_wrong_options():
    lists = draw_lists(0)
    with pytest.raises(ValueError, match="needs its cut-off k"):
        F.most_violated(*lists, measure="precision")
    with pytest.raises(ValueError, match="threshold='sweep' is the lowest label of a relevant entry, a number"):
        F.structured_hinge(*lists, threshold="sweep")
    with pytest.raises(ValueError, match=r"integers, got torch.float32"):
        F.most_violated(*lists[:2], lists[2].float())
    with pytest.raises(ValueError, match="unknown measure 'err'"):
        F.most_violated(*lists, measure="err")
    with pytest.raises(ValueError, match="cut-off k must be"):
        F.structured_hinge(*lists, measure="ndcg", k=0)
    with pytest.raises(ValueError, match="unknown discount"):
        F.structured_hinge(*lists, measure="ndcg", discount="steep")
    with pytest.raises(ValueError, match="unknown discount"):  # the whole NDCG could not be found for any function
        F.most_violated(*lists, measure="ndcg", discount=lambda ranks: ranks)


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
