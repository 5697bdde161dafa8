"""Laws that hold for every function on matrices: see the table in matrix_cases.py."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import torchrank.functional as F
from tests.laws.elsewhere import Elsewhere
from tests.laws.matrix_cases import BATCH, MODULES, NUMBERS, ROWS
from tests.laws.test_functions import Synchronisations

every = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
every_with_gradient = pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.gradient])


def test_every_function_on_matrices_has_a_row():
    exported = {name for name, value in vars(F).items() if name in F.__all__ and callable(value)}
    on_matrices = {name for name in exported if vars(F)[name].__module__ in MODULES}
    assert on_matrices - NUMBERS == {row.function.__name__ for row in ROWS.values()}


def parts(row, inputs, some):
    return [part[some] if batched else part for part, batched in zip(inputs, row.batched, strict=True)]


@every
def test_a_batch_is_its_elements_one_by_one(row):
    inputs = row.draw(0)
    alone = [row(*parts(row, inputs, slice(number, number + 1))) for number in range(BATCH)]
    for whole, pieces in zip(row(*inputs), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(whole, torch.cat(pieces), rtol=1e-11, atol=1e-11)


@every
def test_an_empty_batch(row):
    inputs = row.draw(1)
    for whole, none in zip(row(*inputs), row(*parts(row, inputs, slice(0))), strict=True):
        assert none.shape == (0, *whole.shape[1:]) and none.dtype == whole.dtype


@every
def test_inputs_are_left_alone(row):
    inputs = row.draw(2)
    copies = [part.clone() for part in inputs]
    row(*inputs)
    assert all(torch.equal(part, copy) for part, copy in zip(inputs, copies, strict=True))


@every
def test_the_dtype_is_kept(row):
    inputs = [part.float() for part in row.draw(3)]
    for low, high in zip(row(*inputs), row(*(part.double() for part in inputs)), strict=True):
        assert low.dtype == torch.float32 and high.dtype == torch.float64
        torch.testing.assert_close(low.double(), high, rtol=1e-5, atol=1e-5)


@every
def test_branches_for_other_devices_find_the_same(row):
    inputs = row.draw(5)
    with Elsewhere():
        found = row(*inputs)
    for one, other in zip(row(*inputs), found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@every
def test_runs_on_the_meta_device(row):
    inputs = row.draw(4)
    for real, meta in zip(row(*inputs), row(*(part.to("meta") for part in inputs)), strict=True):
        assert meta.device.type == "meta" and meta.shape == real.shape and meta.dtype == real.dtype


class Reads(TorchFunctionMode):
    """Counts how often numbers are read as a list, which the host does without an operation."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function == torch.Tensor.tolist
        return function(*args, **kwargs or {})


@every
def test_at_most_one_synchronisation(row):
    inputs = row.draw(5)
    with Reads() as reads, Elsewhere(), Synchronisations() as counter:
        row(*inputs)
    assert len(counter.found) + reads.count <= 1


@every
def test_the_gradient_is_there_or_not(row):
    results = row(*(part.requires_grad_() for part in row.draw(6)))
    assert all(result.requires_grad == row.gradient for result in results)


@every_with_gradient
def test_gradient(name):
    row = ROWS[name]
    torch.autograd.gradcheck(row, [part.requires_grad_() for part in row.draw(7)])
