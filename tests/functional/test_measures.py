"""The measures against their plain transcription in tests/reference/measures.py, and cases worked out by hand."""

import math

import numpy as np
import pytest
import torch

from tests.reference import measures as reference
from tests.reference.measures import tensors
from torchrank import functional as F

NAN = float("nan")
CUTS = [None, 1, 2, 5, 12, 70]  # beyond 64 the cut-off is not taken from a block of the first labels
GAINS = {"exp2": "exp2", "linear": "linear", "square": lambda y: y * y}
DISCOUNTS = {"log2p1": "log2p1", "letor": "letor", "inverse": lambda r: 1.0 / r}


def compare(name, batch, *, dtype=torch.float64, atol=1e-12, **options):
    actual = getattr(F, name)(*tensors(*batch, dtype=dtype), **options)
    expected = reference.per_list(getattr(reference, name), *batch, **options)
    assert actual.shape == (len(batch[2]) - 1,)
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=0, atol=atol, err_msg=f"{name} {options}")


def same(actual, expected, atol=0.0):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, equal_nan=True)


def one(name, scores, labels, **options):
    """The value of a single list."""
    value = getattr(F, name)(*tensors(scores, labels, [0, len(scores)]), **options)
    assert value.shape == (1,)
    return value.item()


BINARY = [
    (name, {"k": k, "threshold": threshold, "empty": empty})
    for name in ("average_precision", "precision", "recall", "reciprocal_rank")
    for k in CUTS
    for threshold in (1, 2, 0.5)
    for empty in (NAN, 0.0, 1.0)
]
PAIRWISE = [
    *(("auc", {"threshold": threshold}) for threshold in (1, 2, 0.5)),
    *(("domination_error", {"ties": ties}) for ties in ("correct", "error")),
    *(("all_pairs_error", {"ties": ties}) for ties in ("half", "correct", "error")),
]
ERR = [("err", {"k": k, "max_label": top, "empty": empty}) for k in CUTS for top in (4, 6) for empty in (NAN, 0.0)]
# Every measure once, for the checks that hold for all of them.
EVERY = [
    ("ndcg", {}),
    ("ndcg", {"k": 3}),
    ("ndcg", {"k": 70}),
    ("ndcg", {"k": 3, "ties": "average"}),
    ("ndcg", {"k": 3, "ties": "worst"}),
    ("ndcg", {"discount": "letor", "short": "zero", "k": 5, "empty": 0.0}),
    ("mean_ndcg", {}),
    ("average_precision", {}),
    ("precision", {"k": 5}),
    ("recall", {"k": 5}),
    ("reciprocal_rank", {}),
    ("err", {"max_label": 4}),
    ("auc", {}),
    ("domination_error", {}),
    ("all_pairs_error", {}),
]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("gain", GAINS)
def test_ndcg_stable(gain, discount, real):
    batch = reference.random_batch(seed=1, real=real)
    for k in CUTS:
        for empty in (NAN, 0.0, 1.0):
            compare("ndcg", batch, k=k, gain=GAINS[gain], discount=DISCOUNTS[discount], empty=empty)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("ties", ["average", "worst"])
@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("gain", GAINS)
def test_ndcg_over_all_tie_orders(gain, discount, ties, real):
    batch = reference.random_batch(seed=2, lists=18, longest=6, real=real)
    for k in (None, 1, 2, 4, 6, 70):
        compare("ndcg", batch, k=k, gain=GAINS[gain], discount=DISCOUNTS[discount], ties=ties)


def test_the_ideal_of_a_gain_that_does_not_grow_with_the_label():
    for k in CUTS:
        compare("ndcg", reference.random_batch(seed=17), k=k, gain=lambda y: (y - 2) ** 2)


def test_ndcg_of_real_labels_with_a_gain_of_ones_own():
    scores, labels, offsets = reference.random_batch(seed=18, real=True)
    above = lambda y: max(y - 1.5, 0.0) if isinstance(y, float) else (y - 1.5).clamp(min=0)  # noqa: E731
    for k in (None, 3):
        compare("ndcg", (scores, labels, offsets), k=k, gain=above)


@pytest.mark.parametrize("ties", ["stable", "average", "worst"])
@pytest.mark.parametrize("discount", ["log2p1", "letor"])
def test_ndcg_of_short_lists(discount, ties):
    """`short="zero"`: a list with fewer than k entries counts 0, even if nothing in it is relevant."""
    batch = reference.random_batch(seed=3, lists=30, longest=6)
    for k in (None, 1, 3, 6, 7, 70):
        for short in ("pad", "zero"):
            for empty in (NAN, 0.0, 1.0):
                compare("ndcg", batch, k=k, discount=discount, ties=ties, short=short, empty=empty)


@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("gain", GAINS)
def test_mean_ndcg(gain, discount):
    batch = reference.random_batch(seed=4)
    for empty in (NAN, 0.0):
        compare("mean_ndcg", batch, gain=GAINS[gain], discount=DISCOUNTS[discount], empty=empty)


@pytest.mark.parametrize("ties", ["average", "worst"])
@pytest.mark.parametrize("discount", ["log2p1", "letor"])
def test_mean_ndcg_over_all_tie_orders(discount, ties):
    """NDCG@r of every r is averaged (or the worst) by itself."""
    batch = reference.random_batch(seed=19, lists=18, longest=6)
    compare("mean_ndcg", batch, discount=discount, ties=ties)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("threshold", [1, 2, 0.5])
def test_average_precision_over_all_tie_orders(threshold, real):
    batch = reference.random_batch(seed=20, lists=18, longest=6, real=real)
    for k in (None, 1, 2, 4, 6, 70):
        compare("average_precision", batch, k=k, threshold=threshold, ties="average")


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("seed", [5, 6])
def test_measures_with_a_threshold_pairs_and_err(seed, real):
    batch = reference.random_batch(seed=seed, real=real)
    for name, options in BINARY + PAIRWISE + ERR:
        compare(name, batch, **options)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_float32(name, options):
    """The batch holds the same numbers in both dtypes, so the order is the same; only the arithmetic is shorter."""
    compare(name, reference.random_batch(seed=8, lists=30, longest=6), dtype=torch.float32, atol=2e-6, **options)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_integer_labels_are_labels(name, options):
    scores, labels, offsets = tensors(*reference.random_batch(seed=9))
    function = getattr(F, name)
    same(function(scores, labels.long(), offsets, **options), function(scores, labels, offsets, **options), atol=1e-12)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_what_is_known_of_lists_changes_nothing(name, options):
    scores, labels, offsets = tensors(*reference.random_batch(seed=10))
    function = getattr(F, name)
    without = function(scores, labels, offsets, **options)
    for lists in (F.Lists.of(offsets), F.Lists.of(offsets, labels=labels), F.Lists(offsets, len(labels), longest=12)):
        same(function(scores, labels, lists, **options), without)
    real = F.Lists(offsets, len(labels), grades=0)  # labels that are not known to be grades
    same(function(scores, labels, real, **options), without, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_no_lists_and_only_empty_lists(name, options):
    function = getattr(F, name)
    assert function(*tensors([], [], [0]), **options).shape == (0,)
    value = function(*tensors([], [], [0, 0, 0]), **options)
    expected = options.get("empty", NAN)
    np.testing.assert_array_equal(value.numpy(), [expected, expected])


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_a_nan_score_is_an_error(name, options):
    with pytest.raises(ValueError, match=r"(?i)nan"):
        getattr(F, name)(*tensors([1.0, NAN, 0.0], [1.0, 0.0, 2.0], [0, 3]), **options)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_infinite_scores_are_ordered(name, options):
    infinite = getattr(F, name)(*tensors([-math.inf, 2.0, math.inf], [1.0, 0.0, 2.0], [0, 3]), **options)
    finite = getattr(F, name)(*tensors([1.0, 2.0, 3.0], [1.0, 0.0, 2.0], [0, 3]), **options)
    same(infinite, finite)


@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_one_bit_apart_are_not_tied(dtype, name, options):
    """Neighbouring floats near 1, near 0 (denormal), near the largest number, and lists of very different scales."""
    limits = torch.finfo(dtype)
    chains = [torch.tensor(start, dtype=dtype) for start in (1.0, -1.0, 0.0, limits.max / 2, -limits.max / 2)]
    rng, upwards, scores = np.random.default_rng(12), torch.tensor(math.inf, dtype=dtype), []
    for chain in chains:
        steps = [chain]
        for _ in range(5):
            steps.append(torch.nextafter(steps[-1], upwards))
        scores.append(torch.stack(steps)[torch.from_numpy(rng.permutation(6))])
    labels = rng.integers(0, 5, 30).astype(np.float64)
    batch = torch.cat(scores).double().numpy(), labels, np.arange(0, 31, 6)
    compare(name, batch, dtype=dtype, atol=2e-6 if dtype == torch.float32 else 1e-12, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_half_precision_scores(name, options, dtype):
    """The order is that of the rounded scores; the labels are small integers, which half precision holds."""
    scores, labels, offsets = reference.random_batch(seed=13, lists=30, longest=6)
    rounded = torch.tensor(np.clip(scores, -9, 9)).to(dtype)
    value = getattr(F, name)(rounded, torch.tensor(labels), torch.tensor(offsets), **options)
    expected = reference.per_list(getattr(reference, name), rounded.double().numpy(), labels, offsets, **options)
    np.testing.assert_allclose(value.double().numpy(), expected, rtol=0, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ndcg", {}), ("ndcg", {"k": 10}), ("average_precision", {}), ("err", {"max_label": 4, "k": 20})],
    ids=str,
)
def test_long_lists(name, options):
    """Up to 1251 entries (the longest list of MSLR) beside short ones, with tied blocks."""
    rng = np.random.default_rng(14)
    offsets = np.cumsum([0, 3, 1251, 1, 0, 700, 40])
    scores, labels = (
        rng.integers(-300, 300, offsets[-1]) / 64,
        rng.choice(5, offsets[-1], p=[0.5, 0.3, 0.13, 0.05, 0.02]),
    )
    compare(name, (scores, labels.astype(np.float64), offsets), **options)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("name", "options"), PAIRWISE, ids=str)
def test_pairs_in_longer_lists(name, options, real):
    rng = np.random.default_rng(15)
    offsets = np.cumsum([0, 2, 300, 1, 33, 170])
    scores = rng.integers(-90, 90, offsets[-1]) / 64
    labels = rng.exponential(size=offsets[-1]).round(1) if real else rng.integers(0, 5, offsets[-1]).astype(np.float64)
    compare(name, (scores, labels, offsets), **options)


def test_pair_measures_are_not_quadratic():
    torch.manual_seed(0)
    scores, labels, offsets = torch.randn(60_000), torch.rand(60_000), torch.tensor([0, 60_000])
    assert F.all_pairs_error(scores, labels, offsets).item() == pytest.approx(0.5, abs=0.01)
    assert F.auc(scores, labels, offsets, threshold=0.5).item() == pytest.approx(0.5, abs=0.01)
    assert F.domination_error(scores, labels, offsets).item() > 0.99


# --- by hand ---

# Ranked labels 0, 2, 1, 0, 3. The scores are out of order on purpose.
SCORES = [0.3, 0.9, -0.5, 0.7, 0.1]
LABELS = [1.0, 0.0, 3.0, 2.0, 0.0]


def test_ndcg_by_hand():
    # Gains at ranks 1..5: 0, 3, 1, 0, 7. Ideal order: 7, 3, 1, 0, 0.
    log3, log6 = math.log2(3), math.log2(6)
    ideal = 7 / 1 + 3 / log3 + 1 / 2
    assert one("ndcg", SCORES, LABELS) == pytest.approx((3 / log3 + 1 / 2 + 7 / log6) / ideal, abs=1e-14)
    assert one("ndcg", SCORES, LABELS, k=2) == pytest.approx((3 / log3) / (7 + 3 / log3), abs=1e-14)
    assert one("ndcg", SCORES, LABELS, k=1) == 0.0
    # Linear gains 0, 2, 1, 0, 3 over 3, 2, 1.
    linear = (2 / log3 + 1 / 2) / (3 + 2 / log3 + 1 / 2)
    assert one("ndcg", SCORES, LABELS, k=3, gain="linear") == pytest.approx(linear, abs=1e-14)
    # LETOR's discounts 1, 1, 1/log2(3), 1/2, 1/log2(5).
    letor = (3 + 1 / log3 + 7 / math.log2(5)) / (7 + 3 + 1 / log3)
    assert one("ndcg", SCORES, LABELS, discount="letor") == pytest.approx(letor, abs=1e-14)
    assert one("ndcg", SCORES, LABELS, k=6, short="pad", discount="letor") == pytest.approx(letor, abs=1e-14)
    assert one("ndcg", SCORES, LABELS, k=6, short="zero", discount="letor") == 0.0


def test_ndcg_of_tied_scores_by_hand():
    # Three tied entries with labels 0, 0, 1: the relevant one stands at rank 1, 2 or 3 with probability 1/3 each.
    places = [1, 1 / math.log2(3), 1 / 2]
    assert one("ndcg", [5, 5, 5], [0, 0, 1], ties="average") == pytest.approx(sum(places) / 3, abs=1e-14)
    assert one("ndcg", [5, 5, 5], [0, 0, 1], ties="worst") == 0.5
    assert one("ndcg", [5, 5, 5], [0, 0, 1], ties="stable") == 0.5
    assert one("ndcg", [5, 5, 5], [1, 0, 0], ties="stable") == 1.0
    assert one("ndcg", [5, 5, 5], [1, 0, 0], ties="worst", k=2) == 0.0
    # A zero is a zero, whatever its sign.
    assert one("ndcg", [-0.0, 0.0], [1, 0]) == 1.0
    assert one("ndcg", [-0.0, 0.0], [1, 0], ties="worst") == pytest.approx(1 / math.log2(3), abs=1e-14)
    assert one("reciprocal_rank", [-0.0, 0.0], [0, 1]) == one("auc", [-0.0, 0.0], [0, 1]) == 0.5


def test_ndcg_of_forty_tied_entries():
    """All tied: every entry stands at every rank equally often: expected DCG = (mean gain) x (sum of discounts)."""
    labels = [float(i % 5) for i in range(40)]
    discounts = [1 / math.log2(1 + r) for r in range(1, 11)]
    mean_gain = (0 + 1 + 3 + 7 + 15) / 5
    ideal = sum(15 * d for d in discounts[:8]) + sum(7 * d for d in discounts[8:])
    expected = mean_gain * sum(discounts) / ideal
    assert one("ndcg", [0.25] * 40, labels, k=10, ties="average") == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("grades", [None, 5])
def test_a_perfect_ranking_is_exactly_one(grades):
    rng = np.random.default_rng(16)
    offsets = np.cumsum(np.append(0, rng.integers(1, 30, 500)))
    labels = rng.integers(0, 5, offsets[-1]).astype(np.float64)
    for k in (None, 1, 10):
        scores, grades_given, bounds = tensors(labels, labels, offsets)
        value = F.ndcg(scores, grades_given, F.Lists(bounds, len(labels), grades=grades), k=k)
        assert torch.all((value == 1) | value.isnan())


def test_mean_ndcg_by_hand():
    # Ranked labels 0, 1: NDCG@1 = 0, NDCG@2 = 1/log2(3); with LETOR's discount (1 at both ranks) 0 and 1.
    assert one("mean_ndcg", [1, 2], [1, 0], discount="log2p1") == pytest.approx((0 + 1 / math.log2(3)) / 2, abs=1e-14)
    assert one("mean_ndcg", [1, 2], [1, 0], discount="letor") == 0.5


def test_binary_measures_by_hand():
    # Ranked relevance at threshold 1: 0 1 1 0 1; at threshold 2: 0 1 0 0 1.
    assert one("average_precision", SCORES, LABELS) == pytest.approx((1 / 2 + 2 / 3 + 3 / 5) / 3, abs=1e-14)
    assert one("average_precision", SCORES, LABELS, k=3) == pytest.approx((1 / 2 + 2 / 3) / 3, abs=1e-14)
    assert one("average_precision", SCORES, LABELS, threshold=2) == pytest.approx((1 / 2 + 2 / 5) / 2, abs=1e-14)
    assert one("precision", SCORES, LABELS) == pytest.approx(3 / 5, abs=1e-14)
    assert one("precision", SCORES, LABELS, k=2) == 0.5
    assert one("precision", SCORES, LABELS, k=10) == pytest.approx(3 / 10, abs=1e-14)
    assert one("recall", SCORES, LABELS) == 1.0
    assert one("recall", SCORES, LABELS, k=3) == pytest.approx(2 / 3, abs=1e-14)
    assert one("reciprocal_rank", SCORES, LABELS) == 0.5
    assert one("reciprocal_rank", SCORES, LABELS, k=1) == 0.0
    assert one("reciprocal_rank", SCORES, LABELS, threshold=3) == pytest.approx(1 / 5, abs=1e-14)


def test_err_by_hand():
    # Stopping probabilities with max_label 3 at ranks 1..5: 0, 3/8, 1/8, 0, 7/8.
    expected = (3 / 8) / 2 + (5 / 8) * (1 / 8) / 3 + (5 / 8) * (7 / 8) * (7 / 8) / 5
    assert one("err", SCORES, LABELS, max_label=3) == pytest.approx(expected, abs=1e-14)
    assert one("err", SCORES, LABELS, max_label=3, k=2) == pytest.approx(3 / 16, abs=1e-14)
    with pytest.raises(TypeError):
        F.err(*tensors(SCORES, LABELS, [0, 5]))


@pytest.mark.filterwarnings("ignore:there are labels above 31")
def test_err_of_a_top_label_that_is_rounded_to_one():
    scores, offsets = torch.tensor([2.0, 1.0, 3.0, 1.0]).double(), torch.tensor([0, 2, 4])
    found = F.err(scores, torch.tensor([60, 3, 0, 60]), offsets, max_label=60)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.5]).double(), rtol=1e-15, atol=0)


def test_pairwise_measures_by_hand():
    # Relevant scores .3 -.5 .7 against .9 .1: .3 and .7 beat .1; 2 of 6 pairs.
    assert one("auc", SCORES, LABELS) == pytest.approx(2 / 6, abs=1e-14)
    # Dominating: labels 1, 3, 2. All three are beaten by the 0 at .9.
    assert one("domination_error", SCORES, LABELS) == 1.0
    # 9 pairs with different labels; right: (1: .3 over .1), (2: .7 over .3 and .1).
    assert one("all_pairs_error", SCORES, LABELS) == pytest.approx(6 / 9, abs=1e-14)
    # A constant scorer: no error, all errors, or half.
    assert one("domination_error", [1, 1, 1], [0, 1, 2], ties="correct") == 0.0
    assert one("domination_error", [1, 1, 1], [0, 1, 2], ties="error") == 1.0
    for ties, value in {"half": 0.5, "correct": 0.0, "error": 1.0}.items():
        assert one("all_pairs_error", [1, 1, 1], [0, 1, 2], ties=ties) == value
    # The chain 5 > 4 > 3 > 2 > 1 with its two lowest exchanged: one of the 4 that dominate something is beaten.
    assert one("domination_error", [5, 4, 3, 1, 2], [5, 4, 3, 2, 1]) == 0.25
    # Labels {1, 2}: the ones are the bottom.
    assert one("domination_error", [1, 3, 2, 0], [1, 1, 2, 2]) == 1.0
    assert math.isnan(one("auc", [1, 2], [1, 1])) and math.isnan(one("auc", [1, 2], [0, 0]))
    assert math.isnan(one("domination_error", [1, 2], [3, 3])) and math.isnan(one("all_pairs_error", [1], [3]))


def test_all_pairs_error_is_one_minus_auc_for_two_layers():
    scores, labels, offsets = tensors(*reference.random_batch(seed=11))
    binary = (labels >= 1).double()
    expected = 1 - F.auc(scores, binary, offsets)
    same(F.all_pairs_error(scores, binary, offsets), expected, atol=1e-12)


# --- refusals ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.tensor([1.0, math.nan])}, "1 of 2 scores are NaN"),
        ({"labels": torch.tensor([1.0])}, "mask="),
        ({"scores": torch.ones(2, 1)}, r"Use scores\[:, 0\] of a column"),
        ({"offsets": torch.tensor([0, 3])}, "N = 2"),
        ({"offsets": torch.tensor([0, 2, 1, 2])}, "rise"),
        ({"k": 0}, "k must be a positive integer or None"),
        ({"gain": "exp"}, "unknown gain='exp': choose one of exp2, linear, or give a function"),
        ({"gain": 3}, "unknown gain=3"),
        ({"discount": "log"}, "unknown discount='log': choose one of log2p1, letor"),
        ({"ties": "best"}, "unknown ties='best': choose one of stable, average, worst"),
        ({"short": "skip"}, "unknown short='skip': choose one of pad, zero"),
    ],
)
def test_errors_say_what_to_do(change, message):
    arguments = {"scores": torch.tensor([1.0, 2.0]), "labels": torch.tensor([0, 1]), "offsets": torch.tensor([0, 2])}
    with pytest.raises(ValueError, match=message):
        F.ndcg(**(arguments | change))


def test_err_refuses_a_label_above_the_top():
    with pytest.raises(ValueError, match="max_label must be the top label of the data, at least 2, got 1"):
        F.err(torch.tensor([1.0]), torch.tensor([2]), torch.tensor([0, 1]), max_label=1)


def test_other_measures_refuse_unknown_ties():
    one_entry = (torch.tensor([1.0]), torch.tensor([2]), torch.tensor([0, 1]))
    for function in (F.all_pairs_error, F.domination_error, F.average_precision):
        with pytest.raises(ValueError, match="unknown ties='worst'"):
            function(*one_entry, ties="worst")
