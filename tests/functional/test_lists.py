"""`Lists`: made of offsets, group, qid or mask, and given to any function; padded tensors with a mask; the door."""

import warnings

import numpy as np
import pytest
import torch

from tests.laws.cases import ROWS
from tests.reference.measures import ordered_pairs
from torchrank import DataError
from torchrank.functional import LOSSES, Lists, derivatives, ndcg

GROUP = [3, 0, 1, 4, 2]
OFFSETS = torch.tensor([0, 3, 3, 4, 8, 10])
MASK = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 1, 0, 1, 1], [1, 0, 0, 0, 1]]).bool()
LABELS = torch.tensor([0, 2, 1, 3, 1, 1, 0, 2, 0, 1])
SCORES = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
KINDS = {"offsets": OFFSETS, "group": GROUP, "qid": ["a"] * 3 + ["c"] + ["d"] * 4 + ["e"] * 2, "mask": MASK}
each_loss = pytest.mark.parametrize("name", LOSSES)


def padded(values, fill):
    """In the places of the mask, which is not aligned to the left; what is beside it must not count."""
    return torch.full(MASK.shape, fill, dtype=values.dtype).masked_scatter(MASK, values)


PADDED = padded(SCORES, torch.nan), padded(LABELS, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_made_of_four_descriptions(kind):
    lists = Lists.of(**{kind: KINDS[kind]}, labels=PADDED[1] if kind == "mask" else LABELS)
    assert len(lists) == (4 if kind == "qid" else 5)  # a list without entries has no query id
    assert lists.offsets.unique().tolist() == OFFSETS.unique().tolist()
    assert lists.num_entries == 10 and lists.longest == lists.bound == 4 and lists.grades == 4
    assert lists.ids.bincount().tolist() == lists.lengths.tolist() == lists.offsets.diff().tolist()
    assert lists.pairs == sum(len(ordered_pairs(part)) for part in LABELS.split(GROUP))


@pytest.mark.parametrize(("labels", "grades"), [(LABELS, 4), (LABELS / 2, 0), (LABELS * 30, 0), (LABELS.bool(), 2)])
def test_grades_are_integers_below_64(labels, grades):
    assert Lists.of(OFFSETS, labels=labels).grades == grades
    pairs = sum(len(ordered_pairs(part.tolist())) for part in labels.split(GROUP))
    assert Lists.of(OFFSETS, labels=labels).pairs == pairs and Lists.of(OFFSETS).pairs is None


def test_what_does_not_fit_together_is_refused():
    for options, error, message in [
        ({}, DataError, "one of offsets=.*, got none of them"),
        ({"offsets": OFFSETS, "group": GROUP}, DataError, "got offsets and group"),
        ({"mask": MASK, "group": GROUP}, DataError, "got group and mask"),
        ({"mask": MASK[0]}, DataError, r"mask must be \(B, L\), one row per list, got \(5,\)"),
        ({"offsets": [1, 2]}, ValueError, "offsets must rise from 0 to N = 2, got 1 to 2"),
        ({"offsets": [0, 3, 2]}, ValueError, "offsets must rise from 0"),
        ({"offsets": []}, ValueError, r"offsets must be \(Q \+ 1,\)"),
        ({"offsets": OFFSETS.to("meta")}, DataError, "make the lists on the CPU"),
        ({"group": [3, -1]}, DataError, "sizes of lists, 0 or more"),
        ({"qid": [1, 2, 1]}, DataError, "rows of query 1 are not together"),
        ({"group": [3], "labels": [0, 1]}, DataError, r"there are 3 entries in the lists, but labels \(2,\)"),
        ({"group": [2], "labels": [0, -1]}, ValueError, "label -1 of entry 1"),
        ({"group": [2], "labels": [0, np.nan]}, ValueError, "1 of 2 labels are NaN"),
    ]:
        with pytest.raises(error, match=message) as told:
            Lists.of(**options)
        assert "\n" not in str(told.value)


def test_lists_are_for_their_own_entries_labels_and_device():
    for lists, given, message in [
        (Lists.of([0, 3]), (SCORES, LABELS), r"expected scores \(N,\).*got \(10,\)"),
        (Lists.of(OFFSETS, labels=LABELS.clamp(max=1)), (SCORES, LABELS), r"made for labels 0\.\.1, but there are"),
        (Lists.of(OFFSETS).to("meta"), (SCORES, LABELS), "the lists are on meta, but scores on cpu"),
        (Lists.of(mask=MASK), (PADDED[0][:, 1:], PADDED[1][:, 1:]), "expected scores"),
    ]:
        for function in (ndcg, LOSSES["ranknet"]):
            with pytest.raises(ValueError, match=message):
                function(*given, lists)
    with pytest.raises(DataError, match="give mask="):
        ndcg(*PADDED)
    with pytest.raises(DataError, match="got offsets and mask"):
        ndcg(*PADDED, Lists.of(OFFSETS), mask=MASK)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_lists_stand_in_for_offsets_and_know_on_meta_what_they_knew(row):
    expected = row(SCORES, LABELS, OFFSETS)
    for lists in (Lists.of(OFFSETS), Lists.of(OFFSETS, labels=LABELS), Lists.of(group=GROUP, labels=LABELS.float())):
        torch.testing.assert_close(row(SCORES, LABELS, lists), expected, rtol=0, atol=0, equal_nan=True)
    far = lists.to("meta")
    assert (far.longest, far.grades, far.pairs) == (lists.longest, lists.grades, lists.pairs)
    assert far.lengths.tolist() == GROUP and repr(far) == repr(lists)
    assert row(SCORES.to("meta"), LABELS.to("meta"), far).shape == (5,)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_padded_tensors_with_a_mask_are_the_lists(row):
    expected = row(SCORES, LABELS, OFFSETS)
    given = [part[MASK].split(GROUP) for part in PADDED]
    assert all(torch.equal(torch.cat(part), flat) for part, flat in zip(given, (SCORES, LABELS), strict=True))
    for lists, mask in ((None, MASK), (None, MASK.tolist()), (Lists.of(mask=MASK, labels=PADDED[1]), None)):
        found = row.function(*PADDED, lists, mask=mask, **row.options)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@each_loss
def test_gradients_of_padded_scores_are_where_the_mask_is(name):
    weights = torch.linspace(0.5, 2, 10, dtype=torch.float64)
    expected = derivatives(LOSSES[name])(SCORES, LABELS, OFFSETS, weights=weights)
    found = derivatives(LOSSES[name])(*PADDED, mask=MASK, weights=padded(weights, -1.0))
    for part, flat in zip(found, expected, strict=True):
        assert part is None if flat is None else (part[~MASK] == 0).all() and torch.equal(part[MASK], flat)


@each_loss
def test_options_of_earlier_versions_are_taken_off_and_unknown_ones_refused(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = LOSSES[name](SCORES, LABELS, OFFSETS, max_length=1, num_grades=1, num_pairs=-3)
    assert torch.equal(found, LOSSES[name](SCORES, LABELS, OFFSETS))
    with pytest.raises(TypeError, match=rf"{LOSSES[name].__name__}\(\) has no option nonsense"):
        LOSSES[name](SCORES, LABELS, OFFSETS, nonsense=1)


@pytest.mark.parametrize("lengths", [[3, 0, 1], [40, 2, 7, 0, 33], [5, 5, 5], [300, 1, 1, 1]], ids=str)
def test_sums_and_orders_of_lists(lengths):
    values = torch.tensor(np.random.default_rng(0).normal(size=sum(lengths)).round(1))
    lists, parts = Lists.of(group=lengths), values.split(lengths)
    for found, function in [
        (lists.cumsum(values), lambda part: part.cumsum(0)),
        (lists.remaining(values), lambda part: part.flip(0).cumsum(0).flip(0)),
        (lists.log_softmax(values), lambda part: part.log_softmax(0)),
        (lists.ranks(values).double(), lambda part: 1 + (-part).argsort(stable=True).argsort().double()),
        (lists.levels(values)[0].double(), lambda part: part.unique(return_inverse=True)[1].double()),
        (values[lists.order(values)], lambda part: part.sort(descending=True).values),
    ]:
        torch.testing.assert_close(found, torch.cat([function(part) for part in parts]), rtol=1e-12, atol=1e-12)
    assert lists.several(values).tolist() == [len(part.unique()) > 1 for part in parts]


@pytest.mark.parametrize("lengths", [[3, 0, 1], [40, 2, 7, 0, 33], [5, 5, 5], [0, 0], [], [300, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("most", [1, 60, 2**20])
def test_blocks_hold_every_entry_once_beside_lists_of_similar_length(lengths, most):
    lists, seen = Lists.of(group=lengths), torch.zeros(sum(lengths))
    for block in lists.blocks(most):
        rows = block.fill(torch.ones(sum(lengths)), 0.0)
        assert rows.shape == block.entries.shape and rows.sum(1).min() >= 0.8 * rows.sum(1).max() > 0
        assert rows.sum(1).tolist() == [lengths[q] for q in block.lists.tolist()]
        block.add(seen, rows)
    assert (seen == 1).all()
