"""The domination loss against the double loop over pairs: value, slopes, margins, and the extremes of the scores."""

import itertools

import numpy as np
import pytest
import torch

import torchrank.functional as F
from tests.reference.losses import domination_gradient, domination_loss
from torchrank.functional import Lists, derivatives
from torchrank.functional.losses.domination import DominationGradient
from torchrank.functional.ragged import dominating

MARGINS = ["none", "entries", "layers"]
TRIANGLE = np.abs(np.random.default_rng(9).normal(size=(5, 5)))  # the upper triangle and the diagonal are never read


def batch(seed, *, lists=20, longest=9, grades=5, scale=1.0, real=False):
    """Lists of 0 to `longest` entries; some have one distinct label, and some grades of a list are always missing."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, longest + 1, lists)
    size = lengths.sum()
    labels = draw.exponential(size=size).round(1) if real else draw.integers(0, grades, size)
    labels = np.where(np.repeat(draw.random(lists) < 0.2, lengths), 1, labels)
    offsets = torch.tensor([0, *lengths.cumsum()])
    return torch.tensor(draw.normal(size=size) * scale), torch.tensor(labels), offsets


def margin_of(kind, labels):
    """The `margin` for the library and delta(i, j) for the double loop, by the numbers of the entries."""
    if kind == "none":
        return None, lambda i, j: 0.0
    if kind == "entries":
        s = 0.7 * labels.double() + torch.linspace(0, 0.5, len(labels), dtype=torch.float64)
        return s, lambda i, j: s[i].item() - s[j].item()
    return torch.tensor(TRIANGLE), lambda i, j: TRIANGLE[int(labels[i]), int(labels[j])]


def expected(scores, labels, offsets, delta):
    loss, slopes = [], []
    for a, b in itertools.pairwise(offsets.tolist()):
        one = scores[a:b].tolist(), labels[a:b].tolist(), lambda i, j, a=a: delta(a + i, a + j)
        loss.append(domination_loss(*one))
        slopes.append(domination_gradient(*one))
    return np.array(loss), np.concatenate([np.zeros(0), *slopes])


def value_and_gradient(scores, labels, offsets, **options):
    leaf = scores.clone().requires_grad_()
    loss = F.domination_loss(leaf, labels, offsets, **options)
    loss.sum().backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("kind", MARGINS)
@pytest.mark.parametrize("grades", [2, 5])
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4])
def test_value_and_gradient_equal_the_double_loop(kind, grades, scale):
    scores, labels, offsets = batch(0, grades=grades, scale=scale)
    margin, delta = margin_of(kind, labels)
    loss, slopes = expected(scores, labels, offsets, delta)
    found = value_and_gradient(scores, labels, offsets, margin=margin)
    np.testing.assert_allclose(found[0], loss, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found[1], slopes, rtol=1e-11, atol=1e-12)
    solver = DominationGradient(labels, Lists.of(offsets), margin)
    torch.testing.assert_close(solver.gradient(scores), found[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(solver.loss_and_gradient(scores), found, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["none", "entries"])
def test_real_labels(kind):
    scores, labels, offsets = batch(1, real=True, scale=3.0)
    margin, delta = margin_of(kind, labels)
    loss, slopes = expected(scores, labels, offsets, delta)
    found = value_and_gradient(scores, labels, offsets, margin=margin)
    np.testing.assert_allclose(found[0], loss, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found[1], slopes, rtol=1e-11, atol=1e-12)


def test_only_the_order_of_the_labels_counts():
    scores, labels, offsets = batch(2)
    stretched = torch.tensor([0, 7, 8, 40, 4000])[labels]
    for found, wanted in zip(
        value_and_gradient(scores, stretched, offsets), value_and_gradient(scores, labels, offsets), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", MARGINS)
def test_gradient_equals_finite_differences(kind):
    scores, labels, offsets = batch(3, lists=8)
    margin, _ = margin_of(kind, labels)
    _, slopes = value_and_gradient(scores, labels, offsets, margin=margin)
    for i in range(len(scores)):
        step = torch.zeros_like(scores).index_fill(0, torch.tensor([i]), 1e-5)
        up, down = (F.domination_loss(scores + sign * step, labels, offsets, margin=margin).sum() for sign in (1, -1))
        assert slopes[i].item() == pytest.approx((up - down).item() / 2e-5, abs=1e-7)
    torch.autograd.gradcheck(lambda s: F.domination_loss(s, labels, offsets, margin=margin), scores.requires_grad_())


def test_the_margin_of_entries_has_a_gradient():
    scores, labels, offsets = batch(4, lists=5)
    margin, _ = margin_of("entries", labels)
    torch.autograd.gradcheck(
        lambda s, m: F.domination_loss(s, labels, offsets, margin=m), (scores.requires_grad_(), margin.requires_grad_())
    )


def test_equal_scores_count_what_is_dominated():
    _, labels, offsets = batch(6)
    loss = F.domination_loss(torch.full((len(labels),), -3.5), labels, offsets)
    lists = [labels[a:b] for a, b in itertools.pairwise(offsets)]
    counts = [np.log(1 + (one[:, None] > one).sum(1).numpy()).sum() for one in lists]
    np.testing.assert_allclose(loss, counts, rtol=1e-6)


def test_a_violated_entry_costs_at_least_log_2():
    scores, labels, offsets = batch(7)
    errors = F.domination_error(scores, labels, offsets, ties="error").nan_to_num()
    above = torch.stack([mask.sum() for mask in dominating(labels, offsets).split(offsets.diff().tolist())])
    assert (F.domination_loss(scores, labels, offsets) >= np.log(2) * errors * above).all()


def test_the_lowest_grade_of_a_list_need_not_be_zero():
    scores, labels = torch.tensor([1.0, 2.0, 4.0]).double(), torch.tensor([1, 2, 1])
    loss, slopes = value_and_gradient(scores, labels, torch.tensor([0, 3]))
    np.testing.assert_allclose(loss, [np.log1p(np.exp(-1) + np.exp(2))], rtol=1e-14)
    whole = 1 + np.exp(-1) + np.exp(2)
    np.testing.assert_allclose(slopes, [np.exp(-1) / whole, 1 / whole - 1, np.exp(2) / whole], rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MARGINS)
def test_small_differences_far_from_zero(dtype, kind):
    """Scores near 10,000 and -10,000 in one batch: each list keeps all digits of its differences."""
    scores, labels, offsets = batch(8)
    far = torch.tensor([1e4, -1e4, 0, 1e4], dtype=torch.float64).repeat(5).repeat_interleave(offsets.diff())
    scores = (scores + far).to(dtype)
    margin, delta = margin_of(kind, labels)
    loss, slopes = expected(scores, labels, offsets, delta)
    found = value_and_gradient(scores, labels, offsets, margin=margin)
    precise = {"rtol": 1e-10, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(found[0], loss, **precise)
    np.testing.assert_allclose(found[1], slopes, **precise)


@pytest.mark.parametrize("kind", MARGINS)
@pytest.mark.parametrize("grades", [2, 5])
def test_gradients_sum_to_zero_and_padding_has_none(kind, grades):
    scores, labels, offsets = batch(9, grades=grades, scale=30.0)
    margin, _ = margin_of(kind, labels)
    padded, mask = F.pad(scores, offsets, fill=1e30)
    padded.requires_grad_()
    loss = F.domination_loss(padded, F.pad(labels, offsets)[0], mask=mask, margin=margin)
    loss.sum().backward()
    np.testing.assert_allclose(padded.grad.sum(1), 0, atol=1e-12)
    assert not padded.grad[~mask].any()
    wanted = value_and_gradient(scores, labels, offsets, margin=margin)
    assert torch.equal(loss.detach(), wanted[0]) and torch.equal(padded.grad[mask], wanted[1])


def test_boundaries_as_layer_pairs_are_a_margin_per_entry():
    """D[k, m] = b_(m+1) + ... + b_k is s(k) - s(m) with s the running sum of b."""
    scores, labels, offsets = batch(10)
    s = torch.tensor([0.0, 0.5, 0.7, 2.0, 2.1], dtype=torch.float64)
    by_layers = value_and_gradient(scores, labels, offsets, margin=s[:, None] - s)
    by_entries = value_and_gradient(scores, labels, offsets, margin=s[labels])
    for one, other in zip(by_layers, by_entries, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)
    assert (by_entries[0] >= F.domination_loss(scores, labels, offsets)).all()  # a margin that rises costs


def test_a_margin_for_layers_may_come_as_plain_lists():
    scores, labels, offsets = batch(11)
    loss = F.domination_loss(scores, labels, offsets, margin=TRIANGLE.tolist())
    assert torch.equal(loss, F.domination_loss(scores, labels, offsets, margin=torch.tensor(TRIANGLE)))


def test_infinite_and_undefined_scores():
    inf, labels, offsets = torch.inf, torch.tensor([1, 0, 0, 1]), torch.tensor([0, 3, 4])
    assert F.domination_loss(torch.tensor([inf, 0.0, -inf, 0.0]), labels, offsets).tolist() == [0, 0]
    assert F.domination_loss(torch.tensor([0.0, 0, -inf, -inf]), labels, offsets)[0].item() == pytest.approx(np.log(2))
    assert F.domination_loss(torch.tensor([-inf, 0.0, 1.0, 0.0]), labels, offsets).tolist() == [inf, 0]
    for broken in range(3):  # a fit that diverged must not look perfect, and must not spoil the other lists
        scores = torch.tensor([0.5, 0.0, 1.0, 0.0]).index_fill(0, torch.tensor([broken]), torch.nan)
        loss = F.domination_loss(scores, labels, offsets)
        assert loss[0].isnan() and loss[1] == 0


def test_a_long_list_of_many_grades():
    """3,000 different labels in one list: the sum of i runs over all entries that come before it in label order."""
    draw = np.random.default_rng(12)
    scores, labels = draw.normal(size=3000) * 5, draw.permutation(3000) / 7
    by_label = scores[labels.argsort()]
    loss = F.domination_loss(torch.tensor(scores), torch.tensor(labels), torch.tensor([0, 3000]))
    wanted = (np.logaddexp.accumulate(by_label)[1:] - by_label[1:]).sum()
    assert loss.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", MARGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_list_of_distant_scores_changes_no_other_list(kind, dtype):
    """Plain exponentials where all scores of the batch allow them, sums of logarithms where one list does not."""
    scores, labels, offsets = batch(13, longest=40)
    margin, _ = margin_of(kind, labels)
    far = {"margin": margin if kind != "entries" else torch.cat([margin, margin.new_tensor([0.0, 1.0, 2.0])])}
    near = value_and_gradient(scores.to(dtype), labels, offsets, margin=margin)
    scores = torch.cat([scores, scores.new_tensor([1e4, 0.0, -1e4])]).to(dtype)
    labels = torch.cat([labels, labels.new_tensor([0, 1, 2])])
    values, slopes = value_and_gradient(scores, labels, torch.cat([offsets, offsets[-1:] + 3]), **far)
    precise = {"rtol": 1e-12, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(values[:-1], near[0], **precise)
    torch.testing.assert_close(slopes[:-3], near[1], **precise)


@pytest.mark.parametrize("width", [1.0, 20.0, 61.0, 63.0, 2000.0])
def test_single_precision_keeps_its_digits(width):
    """Whether the range of the scores allows exponentials in float32 or not, and however long the list is."""
    draw = np.random.default_rng(14)
    scores = torch.tensor(draw.random(20_000) * width, dtype=torch.float32)
    labels, offsets = torch.tensor(draw.integers(0, 5, 20_000)), torch.tensor([0, 15_000, 15_010, 20_000])
    low, high = (value_and_gradient(kind, labels, offsets) for kind in (scores, scores.double()))
    assert low[0].dtype == low[1].dtype == torch.float32
    torch.testing.assert_close(low[0].double(), high[0], rtol=5e-7, atol=1e-7)
    torch.testing.assert_close(low[1].double(), high[1], rtol=2e-6, atol=1e-6)


def test_dominating():
    labels, offsets = torch.tensor([1, 2, 1, 0, 0, 3]), torch.tensor([0, 3, 3, 5, 6])
    assert dominating(labels, offsets).tolist() == [False, True, False, False, False, False]
    assert dominating(torch.tensor([0.5, -0.5]), torch.tensor([0, 2])).tolist() == [True, False]


def test_the_diagonal_of_the_second_derivative_is_that_of_the_plain_sum():
    """Also of scores so far apart that no exponential can be formed, and with margins."""
    labels, offsets = torch.tensor([0, 1, 2, 1, 0, 3]), torch.tensor([0, 4, 6])
    for size, margin in itertools.product((1.0, 1e3), (None, [[0.1 * (a - b) for b in range(4)] for a in range(4)])):
        scores = size * torch.tensor([0.3, -0.2, 0.5, 0.1, 0.4, 0.0], dtype=torch.float64)

        def plain(scores, margin=margin):
            total = scores.new_zeros(())
            for i, j in ((i, j) for a, b in ((0, 4), (4, 6)) for i in range(a, b) for j in [range(a, b)]):
                below = [k for k in j if labels[k] < labels[i]]
                gaps = [scores[k] - scores[i] + (margin[labels[i]][labels[k]] if margin else 0) for k in below]
                total = total + torch.logsumexp(torch.stack([*gaps, scores.new_zeros(())]), 0)
            return total

        expected = torch.autograd.functional.hessian(plain, scores)
        found = derivatives(F.domination_loss)(scores, labels, offsets, margin=margin)[1]
        torch.testing.assert_close(found, expected.diagonal(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("margin", "message"),
    [
        (torch.zeros(3), r"margin must have one value per entry, \(2,\), .* got shape \(3,\)"),
        (torch.tensor(0.5), r"got shape \(\)"),
        (torch.zeros(2, 3), r"or be a square matrix .* got shape \(2, 3\)"),
        (torch.zeros(2, 2), "margin is \\(2, 2\\), but there are labels up to 2"),
        (torch.zeros(3, 3, requires_grad=True), "a constant and has no gradient"),
    ],
)
def test_refused_margins(margin, message):
    with pytest.raises(ValueError, match=message):
        F.domination_loss(torch.zeros(2), torch.tensor([0, 2]), torch.tensor([0, 2]), margin=margin)


def test_layer_pairs_need_grades():
    with pytest.raises(ValueError, match="real-valued"):
        F.domination_loss(torch.zeros(2), torch.tensor([0.5, 1]), torch.tensor([0, 2]), margin=torch.zeros(2, 2))
