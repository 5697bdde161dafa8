"""A device that is not there: its tensors hold their numbers on the CPU and count what a GPU would do.

Every operation runs on the CPU's numbers, so whole fits run with a `device.type` other than "cpu" and take the branches
for devices. Tensors of different devices in one operation raise, as CUDA does. Counted are waits of the host for the
device: `.item()`, copies to the host, shapes that depend on values.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "emulated"


class _Backend(backend_registration._DummyBackendModule):
    """What torch and Lightning ask a device for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, *_: Any) -> None: ...

    def synchronize(self, *_: Any) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def get_rng_state(self, *_: Any) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, *_: Any) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None: ...


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
torch._C._set_only_lift_cpu_tensors(True)
DEVICE = torch.device(NAME, 0)

WAITS = {  # the host waits: for a value, or for a shape that depends on values
    "_local_scalar_dense", "_unique", "_unique2", "allclose", "bincount", "equal", "histc", "is_nonzero", "item",
    "masked_select", "nonzero", "unique_consecutive", "unique_dim", "unique_dim_consecutive",
}  # fmt: skip
LOOPED = {"_linalg_eigh", "_linalg_svd"}  # CUDA solves one matrix after the other above 32 columns


@dataclass(eq=False)
class Count:
    """What a device would have done."""

    waits: int = 0
    waited_at: Counter[str] = field(default_factory=Counter)
    one_after_the_other: int = 0  # matrices of `LOOPED`

    def wait(self, what: str) -> None:
        self.waits += 1
        self.waited_at[f"{what} at {_place()}"] += 1


def _place() -> str:
    """The line of torchrank that asked."""
    for frame in reversed(traceback.extract_stack(limit=60)):
        if "/torchrank/" in frame.filename:
            return f"{frame.filename.rpartition('/torchrank/')[2]}:{frame.lineno} {frame.name}"
    return "a line of another package"


class Emulated(Tensor):
    """A tensor of the device that is not there; `held` are its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Emulated":
        made: Emulated = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Emulated({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.held = _held(value)

    def tolist(self) -> Any:
        _MODE.wait("tolist")
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert an emulated tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def storage_offset(self) -> int:  # type: ignore[override]
        return self.held.storage_offset()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _MODE.run(func, args, kwargs or {})


def _held(value: Any) -> Any:
    if isinstance(value, Emulated):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


class _Mode(TorchDispatchMode):
    """Sends the operations of the device to the CPU and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[Count] = []

    def wait(self, what: str) -> None:
        for count in self.counts:
            count.wait(what)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.rpartition("::")[2]
        leaves = tree_leaves((args, kwargs))
        here = [each for each in leaves if isinstance(each, Emulated)]
        host = [each for each in leaves if isinstance(each, Tensor) and not isinstance(each, Emulated)]
        target = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        if not here and target != NAME:
            return func(*args, **kwargs)
        if name == "_to_copy" and (target == "cpu" if here else True):
            return self._copy(func, args, kwargs, to_host=bool(here))
        self._check_devices(name, args, here, host)
        found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        self._count(name, tree_map(_held, args), tree_map(_held, kwargs))
        return self._wrapped(func, name, args, here, found)

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], to_host: bool) -> Any:
        source = _held(args[0])
        if source.numel():
            self.wait("a copy to the host" if to_host else "a copy to the device")
        found = func(source, **{**kwargs, "device": torch.device("cpu")})
        if to_host:
            return found
        return Emulated(found.clone() if found.data_ptr() == source.data_ptr() else found)

    def _check_devices(self, name: str, args: tuple[Any, ...], here: list[Emulated], host: list[Tensor]) -> None:
        if name == "copy_":
            if isinstance(args[0], Emulated) != isinstance(args[1], Emulated):
                self.wait("copy_ between devices")
        elif name in ("index", "index_put_", "_index_put_impl_", "index_put"):
            if here and any(each.dim() for each in host):
                self.wait("an index on the host")
        elif here and any(each.dim() for each in host):
            raise RuntimeError(f"tensors on {DEVICE} and on cpu in {name} at {_place()}")

    def _count(self, name: str, args: Any, kwargs: Any) -> None:
        by_mask = name in ("index", "index_put_", "_index_put_impl_") and any(
            isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        unknown = name == "repeat_interleave" and kwargs.get("output_size") is None and len(args) < 3
        if by_mask or unknown or name in WAITS:
            self.wait(name)
        if name in LOOPED and args[0].shape[-1] > 32:
            for count in self.counts:
                count.one_after_the_other += args[0].shape[:-2].numel()

    def _wrapped(self, func: Any, name: str, args: tuple[Any, ...], here: list[Emulated], found: Any) -> Any:
        if name in ("_local_scalar_dense", "item", "equal", "is_nonzero"):
            return found
        first = func._schema.arguments[0].alias_info if func._schema.arguments else None
        if first is not None and first.is_write and isinstance(args[0], Emulated) and isinstance(found, Tensor):
            if args[0].shape != found.shape:  # squeeze_ and others
                args[0].data = Emulated(found)
            return args[0]
        known = {id(each.held): each for each in here}

        def wrap(each: Any) -> Any:
            return known[id(each)] if id(each) in known else Emulated(each) if isinstance(each, Tensor) else each

        return tree_map(wrap, found)


_MODE = _Mode()


@contextmanager
def emulated() -> Iterator[None]:
    """Operations that name the device run on it."""
    with _MODE:
        yield


@contextmanager
def counting() -> Iterator[Count]:
    """What the device does in this block, blocks within it included."""
    count = Count()
    _MODE.counts.append(count)
    try:
        yield count
    finally:
        _MODE.counts.remove(count)
