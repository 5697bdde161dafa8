"""Laws that hold for every function on lists: see the table in cases.py."""

import inspect
import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchrank.functional as F
from tests.laws.cases import ROWS, TIED, batch, known_lists
from tests.laws.elsewhere import Elsewhere
from torchrank.functional import ragged

LOSS_ROWS = {name: row for name, row in ROWS.items() if row.loss}
every = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
every_loss = pytest.mark.parametrize("row", LOSS_ROWS.values(), ids=LOSS_ROWS.keys())


def same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=atol, equal_nan=True)


def reorder_lists(values, offsets, order):
    parts = [values[a:b] for a, b in itertools.pairwise(offsets.tolist())]
    return torch.cat([parts[q] for q in order])


def test_every_function_on_lists_has_a_row():
    functions = {name: value for name, value in vars(F).items() if name in F.__all__ and callable(value)}
    first_three = {name: list(inspect.signature(value).parameters)[:3] for name, value in functions.items()}
    on_lists = {name for name, arguments in first_three.items() if arguments == ["scores", "labels", "offsets"]}
    assert on_lists - {"evaluate"} == {row.function.__name__ for row in ROWS.values()}


@every
def test_one_value_per_list(row):
    scores, labels, offsets = batch(0)
    values = row(scores, labels, offsets)
    assert values.shape == (30,) and values.dtype == torch.float64


class Rounded(TorchDispatchMode):
    """Operations that make numbers of less than double precision: integers divided, or added to a Python float."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dtype != torch.float64:
                self.found.append(f"{function} made {each.dtype}")
        return result


@every
def test_nothing_in_between_is_rounded(row):
    scores, labels, offsets = batch(15)
    with Rounded() as rounded:
        values = row(scores.requires_grad_(row.loss), labels, offsets)
        if row.loss:
            values.sum().backward()
    assert not rounded.found


@every
def test_permuting_the_entries_of_lists_changes_nothing(row):
    scores, labels, offsets = batch(1)
    if row.stable:
        labels = scores * 7 + 21  # all different
    generator = torch.Generator().manual_seed(0)
    order = torch.cat([a + torch.randperm(b - a, generator=generator) for a, b in itertools.pairwise(offsets.tolist())])
    same(row(scores[order], labels[order], offsets), row(scores, labels, offsets))


@every
def test_permuting_the_lists_permutes_the_values(row):
    scores, labels, offsets = batch(2)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    moved = torch.nn.functional.pad(offsets.diff()[order].cumsum(0), (1, 0))
    values = row(reorder_lists(scores, offsets, order), reorder_lists(labels, offsets, order), moved)
    same(values, row(scores, labels, offsets)[order])


@every
def test_a_batch_is_the_concatenation_of_its_lists(row):
    scores, labels, offsets = batch(3)
    scores = scores.round()  # with equal scores too
    alone = [row(scores[a:b], labels[a:b], torch.tensor([0, b - a])) for a, b in itertools.pairwise(offsets.tolist())]
    same(row(scores, labels, offsets), torch.cat(alone))


@every
def test_shifting_the_scores_of_a_list_changes_nothing(row):
    if row.pointwise:
        return
    scores, labels, offsets = batch(4)
    shift = torch.linspace(-64, 64, 30, dtype=torch.float64).round().repeat_interleave(offsets.diff())
    same(row(scores * 7 + shift * 7, labels, offsets), row(scores * 7, labels, offsets))


@every
def test_all_scores_equal(row):
    offsets = torch.tensor([0, 4, 4, 8])
    labels = torch.tensor(TIED + TIED)
    values = row(torch.full((8,), 0.3, dtype=torch.float64), labels, offsets)
    same(values[0], values[2])
    assert values[0].isfinite() or math.isnan(row.all_tied)
    if row.all_tied is not None:
        assert values[0].item() == pytest.approx(row.all_tied, abs=1e-12, nan_ok=True)


@every
def test_lists_with_one_entry(row):
    values = row(torch.tensor([5.0, -1.0]), torch.tensor([1, 1]), torch.tensor([0, 1, 2]))
    expected = row.single if isinstance(row.single, tuple) else [row.single] * 2
    assert values.tolist() == pytest.approx(list(expected), nan_ok=True)


@every
@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]], ids=str)
def test_batches_without_entries(row, offsets):
    scores = torch.empty(0, requires_grad=row.loss)
    labels, offsets = torch.empty(0, dtype=torch.int64), torch.tensor(offsets)
    for lists in (offsets, known_lists(labels, offsets)):
        values = row(scores, labels, lists)
        assert values.shape == (len(offsets) - 1,)
        if row.loss:
            assert (values == 0).all() and values.requires_grad
            values.sum().backward()


@every
def test_what_lists_know_changes_no_value(row):
    scores, labels, offsets = batch(5)
    scores, expected = scores.round(), row(scores.round(), labels, offsets)
    for lists in (F.Lists.of(offsets), known_lists(labels, offsets), F.Lists(offsets, len(labels), longest=12)):
        same(row(scores, labels, lists), expected, atol=0)
        same(row(scores, labels, lists), expected, atol=0)  # what has been kept of the first call is not spoilt
    same(row(scores, labels, F.Lists(offsets, len(labels), longest=20, grades=0)), expected)


@every
def test_options_of_earlier_versions_are_ignored(row):
    scores, labels, offsets = batch(17)
    same(row(scores, labels, offsets, max_length=3, num_grades=2, num_pairs=5), row(scores, labels, offsets), atol=0)


@every
def test_lists_of_other_labels_are_refused_or_do_not_matter(row):
    scores, labels, offsets = batch(17)
    for other in (labels.clamp(max=1), labels * 5):
        try:
            values = row(scores, labels, known_lists(other, offsets))
        except ValueError as error:
            assert "these lists were made for labels" in str(error)
        else:
            same(values, row(scores, labels, offsets))


@every
def test_labels_that_are_nan_or_no_grades_are_refused(row):
    scores, labels, offsets = batch(18)
    grades, labels = known_lists(labels, offsets), labels.double()
    labels[0] = 0.5
    try:
        values = row(scores, labels, grades)
    except ValueError as error:
        assert "these lists were made for labels" in str(error)
    else:
        same(values, row(scores, labels, offsets), atol=0)
    labels[0] = math.nan
    with pytest.raises(ValueError, match=r"1 of .* labels are NaN"):
        row(scores, labels, offsets)


def forms_of_lists(scores, labels, offsets):
    """The same lists in every form in which they may be given: arguments, keywords, and their offsets."""
    lengths = offsets.diff()
    padded, mask = F.pad(scores, offsets, fill=7)
    grades = F.pad(labels, offsets, fill=9)[0]
    names = [f"query {q}" for q, length in enumerate(lengths.tolist()) for _ in range(length)]
    filled = torch.cat([offsets[:1], offsets[1:][lengths > 0]])  # lists without entries have no query id
    yield (scores, labels), {"group": lengths}, offsets
    yield (scores, labels), {"group": lengths.tolist()}, offsets
    yield (scores, labels), {"qid": torch.repeat_interleave(lengths)}, filled
    yield (scores, labels), {"qid": names}, filled
    yield (scores, labels, F.Lists.of(group=lengths)), {}, offsets
    yield (scores, labels, known_lists(labels, offsets)), {}, offsets
    yield (padded, grades), {"mask": mask}, offsets
    yield (padded, grades, F.Lists.of(mask=mask)), {}, offsets
    yield (padded, grades, F.Lists.of(mask=mask, labels=grades)), {}, offsets


@every
def test_values_and_gradients_are_the_same_for_all_forms_of_lists(row):
    scores, labels, offsets = batch(20)
    for arguments, keywords, bounds in forms_of_lists(scores.requires_grad_(row.loss), labels, offsets):
        expected, values = row(scores, labels, bounds), row(*arguments, **keywords)
        same(values, expected)
        if row.loss:
            gradients = [torch.autograd.grad(each.sum(), scores, retain_graph=True)[0] for each in (values, expected)]
            same(*gradients)


@every
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16, torch.float32, torch.float64])
def test_the_dtype_of_labels_changes_no_value(row, dtype):
    scores, labels, offsets = batch(6)
    same(row(scores, labels.to(dtype), offsets), row(scores, labels, offsets))


@every
def test_offsets_may_be_32_bits_wide(row):
    scores, labels, offsets = batch(19)
    same(row(scores, labels, offsets.int()), row(scores, labels, offsets), atol=0)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dtype_of_scores_is_that_of_the_result(row, dtype):
    scores, labels, offsets = batch(7)
    low = scores.to(dtype)
    values = row(low, labels, offsets)
    assert values.dtype == torch.float32
    torch.testing.assert_close(
        values.double(), row(low.double(), labels, offsets), rtol=1e-6, atol=1e-6, equal_nan=True
    )


@every
def test_runs_on_the_meta_device(row):
    """A hidden synchronisation or a constant on the CPU raises there."""
    scores, labels, offsets = batch(8)
    lists = known_lists(labels, offsets).to("meta")
    scores, labels, offsets = (part.to("meta") for part in (scores, labels, offsets))
    for form in (lists, offsets):
        scores = scores.detach().requires_grad_(row.loss)
        values = row(scores, labels, form)
        assert values.device.type == "meta" and values.shape == (30,)
        if row.loss:
            values.sum().backward()
            assert scores.grad.shape == scores.shape


@every
@pytest.mark.parametrize(("lists", "longest"), [(30, 12), (60, 400)])
def test_branches_for_other_devices_find_the_same(row, lists, longest):
    scores, labels, offsets = batch(15, lists=lists, longest=longest)
    lists, expected = known_lists(labels, offsets), row(scores.requires_grad_(row.loss), labels, offsets)
    with Elsewhere():
        assert scores.device.type == "cuda"
        values = row(scores, labels, lists)
        without = row(scores, labels, offsets)
    same(values, expected)
    same(without, expected)
    if row.loss:
        gradients = [torch.autograd.grad(value.nansum(), scores)[0] for value in (values, expected)]
        same(*gradients)


class Synchronisations(TorchDispatchMode):
    """Counts what would wait for a GPU: a number read by the host, an output whose size depends on values."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name, options = function.name(), options or {}
        sized_by_values = name == "aten::repeat_interleave.Tensor" and options.get("output_size") is None
        by_mask = name.startswith("aten::index") and any(
            part.dtype == torch.bool for part in torch.utils._pytree.tree_leaves(arguments[1]) if torch.is_tensor(part)
        )
        waits = name.startswith(("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"))
        if waits or sized_by_values or by_mask:
            self.found.append(name)
        return function(*arguments, **options)


def test_the_counter_counts():
    with Synchronisations() as counter:
        torch.ones(2)[torch.tensor([True, False])].sum().item()
        torch.ones(1).repeat_interleave(torch.tensor([2]))
    assert len(counter.found) == 3


@every
def test_with_lists_made_with_labels_no_function_reads_a_device(row):
    """See also `test_runs_on_the_meta_device`, where there is nothing to read."""
    scores, labels, offsets = batch(9)
    scores.requires_grad_(row.loss)
    lists = known_lists(labels, offsets)
    with Elsewhere(), Synchronisations() as counter:
        values = row(scores, labels, lists)
        if row.loss:
            values.sum().backward()
    assert counter.found == []


@every
def test_at_most_one_synchronisation_otherwise(row):
    scores, labels, offsets = batch(10)
    with Elsewhere(), Synchronisations() as counter:
        row(scores, labels, offsets)
    assert len(counter.found) <= 1


@every_loss
def test_gradient(row):
    scores, labels, offsets = batch(11, lists=6, longest=5)
    torch.autograd.gradcheck(lambda s: row(s, labels, offsets), scores.requires_grad_())


@every_loss
@pytest.mark.parametrize("large", [1e4, math.inf])
def test_one_distinct_label_is_a_connected_zero(row, large):
    if row.alone:
        return
    scores = torch.tensor([large, -large, 3.0, 2.0], requires_grad=True)
    values = row(scores, torch.tensor([3, 3, 0, 0]), torch.tensor([0, 2, 4]))
    assert values.tolist() == [0, 0]
    values.sum().backward()
    assert scores.grad.tolist() == [0, 0, 0, 0]


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_scores_give_finite_losses_and_gradients(row, dtype):
    scores, labels, offsets = batch(12)
    large = (scores * 1e4 / scores.abs().max()).to(dtype).requires_grad_()
    values = row(large, labels, offsets)
    values.mean().backward()  # the sum has slopes of sums of squares beyond the numbers of float16
    assert values.isfinite().all() and large.grad.isfinite().all() and large.grad.dtype == dtype
    expected = row(large.detach().double(), labels, offsets)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)


@every
def test_measures_have_no_graph_and_refuse_nan(row):
    scores, labels, offsets = batch(13)
    if row.loss:
        return
    assert not row(scores.requires_grad_(), labels, offsets).requires_grad
    broken = scores.detach().clone()
    broken[3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        row(broken, labels, offsets)


def test_flat_list_operations_run_on_the_meta_device():
    scores, labels, offsets = batch(14)
    lists, scores, offsets = known_lists(labels, offsets).to("meta"), scores.to("meta"), offsets.to("meta")
    padded, mask = F.pad(scores, lists)
    assert padded.shape == mask.shape == (30, lists.longest)
    for function in (ragged.sort_within, ragged.ranks, ragged.levels_within, ragged.segment_cumsum):
        assert function(scores, offsets).shape == scores.shape
    assert ragged.segment_softmax(scores, offsets).shape == scores.shape
