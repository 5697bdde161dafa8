"""The state of modules: tensors that take the size of what is stored in or loaded into them, and what is derived from
them.

What a ranker learns often has a size that the data decides: metrics, rules, rows for each query. No size must be known
before a checkpoint is loaded, and none is written beside its tensors.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


@torch.no_grad()
def store(module: nn.Module, **values: Tensor) -> None:
    """Write parameters and buffers of a module: they keep their dtype and device, and take the sizes of the values.

    Args:
        module: owns the parameters and buffers itself, not through a submodule.
        values: what to write, by the names of the parameters and buffers. A value may be a view of what is written.

    Example:
        >>> module = nn.BatchNorm1d(2)
        >>> store(module, running_mean=torch.tensor([1, 2, 3]))
        >>> module.running_mean
        tensor([1., 2., 3.])
    """
    own = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    for name, value in values.items():
        value = value.detach()  # keeps the old memory if it is a view of it
        own[name].data = own[name].new_empty(value.shape)
        own[name].copy_(value)


def take_sizes(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook for `register_load_state_dict_pre_hook`: everything below the module takes the sizes of the state.

    Example:
        >>> module = nn.Linear(2, 2, bias=False)
        >>> _ = module.register_load_state_dict_pre_hook(take_sizes)
        >>> module.load_state_dict({"weight": torch.ones(3, 5)})
        <All keys matched successfully>
        >>> module.weight.shape
        torch.Size([3, 5])
    """
    for name, own in module.state_dict(prefix=prefix, keep_vars=True).items():
        new = state.get(name)
        if isinstance(own, Tensor) and isinstance(new, Tensor) and own.shape != new.shape:
            own.data = own.new_empty(new.shape)


class Derived:
    """Keeps what was made from some tensors, and makes it again when one of them has changed.

    A tensor has changed if it is another object, or if it was written to in place (not through `tensor.data`).

    Example:
        >>> kept, weight = Derived(), torch.ones(2)
        >>> kept("sum", [weight], weight.sum)
        tensor(2.)
        >>> _ = weight.add_(1)
        >>> kept("sum", [weight], weight.sum)
        tensor(4.)
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[list[_Seen], Any]] = {}

    def __call__(self, name: str, tensors: Sequence[Tensor], make: Callable[[], T]) -> T:
        """What `make` returned when it was last called for this name; it is called again if the tensors changed."""
        seen, made = self._made.get(name, ([], None))
        if len(seen) != len(tensors) or not all(map(_Seen.is_same, seen, tensors)):
            _, made = self._made[name] = [_Seen(each) for each in tensors], make()
        found: T = made
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._made = {}

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start empty: their tensors are other objects."""
        return {"_made": {}}


class _Seen:
    """A tensor as it was. It is not kept alive, and another one in the same memory is not taken for it."""

    def __init__(self, tensor: Tensor):
        self.reference, self.state = weakref.ref(tensor), self.state_of(tensor)

    @staticmethod
    def state_of(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.dtype

    def is_same(self, tensor: Tensor) -> bool:
        return self.reference() is tensor and self.state == self.state_of(tensor)


def clear_derived(module: nn.Module) -> None:
    """Forget everything that was derived in a module and in its submodules."""
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Derived):
                value.clear()
