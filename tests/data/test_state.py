"""Tensors that take the size of what is stored in or loaded into them, and what is derived from tensors."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from torchrank.data.state import Derived, clear_derived, store, take_sizes


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


class Outer(nn.Module):
    """A module of modules, of which only the outermost has the hook."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.inner = nn.ModuleList([Inner(), nn.ModuleDict({"deep": Inner()})])
        self.register_load_state_dict_pre_hook(take_sizes)


# ---- store -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 5), (1, 2), (2, 2), (7, 3), (4,), ()])
def test_stored_values_have_their_own_size_and_the_old_type(shape):
    module, value = Inner(), torch.full(shape, 3, dtype=torch.int32)
    parameter = module.rows
    store(module, rows=value, count=torch.tensor(9.0))
    assert module.rows is parameter and not module.rows.requires_grad
    assert module.rows.dtype == torch.float32 and torch.equal(module.rows, value.float())
    assert module.count.dtype == torch.int64 and int(module.count) == 9
    value += 1
    assert torch.equal(module.rows, value.float() - 1)  # a copy


def test_a_part_of_what_is_written_can_be_stored():
    module = Inner()
    store(module, rows=torch.arange(6.0).view(3, 2))
    store(module, rows=module.rows[1:].T)
    assert module.rows.tolist() == [[2.0, 4.0], [3.0, 5.0]]


def test_stored_values_have_no_gradient_and_no_graph():
    module, source = Outer(), torch.ones(5, requires_grad=True)
    store(module, weight=source * 2)
    assert module.weight.requires_grad and module.weight.is_leaf and module.weight.grad_fn is None
    (module.weight.sum() * 3).backward()
    assert module.weight.grad.tolist() == [3.0] * 5 and source.grad is None


def test_only_what_a_module_owns_itself_can_be_stored():
    with pytest.raises(KeyError, match="rows"):
        store(Outer(), rows=torch.ones(1))


# ---- take_sizes ------------------------------------------------------------------------------------------------------


def sized(count: int) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.arange(float(count)),
        "inner.0.rows": torch.full((count, count + 1), 2.0),
        "inner.0.count": torch.tensor(count),
        "inner.1.deep.rows": torch.full((1, count), 5.0),
        "inner.1.deep.count": torch.tensor(count + 1),
    }


@pytest.mark.parametrize("counts", [(0,), (1,), (3,), (50,), (50, 2), (2, 50), (4, 0, 4)])
def test_nested_modules_take_the_sizes_of_a_state_whether_they_grow_or_shrink(counts):
    module = Outer()
    for count in counts:
        assert not any(module.load_state_dict(sized(count)))
        for name, value in module.state_dict().items():
            assert torch.equal(value, sized(count)[name])
    assert module.weight.requires_grad and not module.inner[0].rows.requires_grad


def test_a_module_inside_one_without_the_hook_takes_its_own_sizes_only():
    whole = nn.ModuleDict({"has": Outer(), "has_not": Inner()})
    state = whole.state_dict()
    state["has.inner.0.rows"] = torch.ones(9, 9)
    whole.load_state_dict(state)
    assert whole["has"].inner[0].rows.shape == (9, 9)
    state["has_not.rows"] = torch.ones(9, 9)
    with pytest.raises(RuntimeError, match=r"size mismatch for has_not\.rows"):
        whole.load_state_dict(state)


def test_missing_and_unknown_names_are_still_errors():
    module, state = Outer(), sized(4)
    del state["weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*weight"):
        module.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        module.load_state_dict(sized(4) | {"other": torch.ones(1)})


def test_what_is_loaded_is_a_copy_in_the_type_of_the_module():
    module, state = Outer().double(), sized(3)
    module.load_state_dict(state)
    state["weight"] += 1
    assert module.weight.dtype == torch.float64 and module.weight.tolist() == [0.0, 1.0, 2.0]


# ---- Derived ---------------------------------------------------------------------------------------------------------


class Calls:
    """Counts how often something is made."""

    def __init__(self):
        self.count, self.kept = 0, Derived()

    def __call__(self, *tensors: torch.Tensor, name: str = "sum"):
        def make():
            self.count += 1
            return sum(float(each.sum()) for each in tensors)

        return self.kept(name, tensors, make)


def test_it_is_made_once_while_nothing_changes():
    calls, one, other = Calls(), torch.ones(3), torch.ones(2)
    assert [calls(one, other) for _ in range(3)] == [5.0] * 3 and calls.count == 1
    assert calls(one, name="other") == 3.0 and calls(one, other) == 5.0 and calls.count == 2
    assert calls(one) == 3.0 and calls.count == 3  # of other tensors under the same name


CHANGES = {
    "in place": lambda module: module.rows.add_(1),
    "one number": lambda module: module.rows[0, 0].fill_(7),
    "store": lambda module: store(module, rows=torch.full((2, 2), 5.0)),
    "another size": lambda module: store(module, rows=torch.ones(5, 1)),
    "loaded": lambda module: module.load_state_dict({"rows": torch.full((2, 2), 9.0), "count": torch.tensor(0)}),
    "assigned": lambda module: module.load_state_dict(
        {"rows": torch.full((2, 2), 9.0), "count": torch.tensor(0)}, assign=True
    ),
    "dtype": lambda module: module.double(),
    "data": lambda module: setattr(module.rows, "data", torch.full((2, 2), 4.0)),
    "another parameter": lambda module: setattr(module, "rows", nn.Parameter(torch.ones(2, 2))),
    "transposed": lambda module: setattr(module.rows, "data", module.rows.data.T),
    "optimizer": lambda module: step(module),
}


def step(module):
    module.rows.requires_grad_(True)
    module.rows.sum().backward()
    torch.optim.Adam(module.parameters()).step()
    module.rows.requires_grad_(False)


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_made_again_when_a_tensor_changes(change):
    module, calls = Inner(), Calls()
    calls(module.rows)
    CHANGES[change](module)
    assert calls(module.rows) == float(module.rows.sum()) and calls.count == 2
    assert calls(module.rows) == float(module.rows.sum()) and calls.count == 2


def test_another_tensor_in_the_same_memory_is_not_taken_for_the_old_one():
    """An allocator hands out freed memory again at once: same address, same version, same size."""
    calls, addresses = Calls(), set()
    for number in range(50):
        tensor = torch.full((1000,), float(number))
        addresses.add(tensor.data_ptr())
        assert calls(tensor) == 1000.0 * number
        del tensor
    assert calls.count == 50
    if len(addresses) == 50:
        pytest.skip("this allocator did not use memory again")


def test_two_views_of_one_memory_are_two_tensors():
    calls, memory = Calls(), torch.arange(4.0)
    one, other = memory[:2], memory[:2]
    assert calls(one) == calls(other) == 1.0 and calls.count == 2
    memory[0] = 5.0  # views share the version of their base
    assert calls(other) == 6.0 and calls.count == 3


def test_tensors_are_not_kept_alive():
    kept, tensor = Derived(), torch.ones(10)
    kept("name", [tensor], lambda: 1)
    gone: list[bool] = []
    weakref.finalize(tensor, gone.append, True)
    del tensor
    gc.collect()
    assert gone == [True]


def test_copies_and_pickles_start_empty():
    module = Inner()
    module.kept = Derived()
    module.kept("sum", [module.rows], lambda: "old")
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert again.kept("sum", [again.rows], lambda: "new") == "new"
    assert module.kept("sum", [module.rows], lambda: "new") == "old"


def test_clearing_reaches_every_module_below():
    outer = Outer()
    outer.kept, outer.inner[1]["deep"].kept = Derived(), Derived()
    for module in (outer, outer.inner[1]["deep"]):
        module.kept("name", [outer.weight], lambda: "old")
    clear_derived(outer)
    for module in (outer, outer.inner[1]["deep"]):
        assert module.kept("name", [outer.weight], lambda: "new") == "new"
