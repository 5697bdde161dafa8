"""A device that is not there: its tensors hold their numbers on the CPU and count what a GPU would do.

Every operation runs on the CPU's numbers, so whole fits run with a `device.type` other than "cpu" and take the branches
for devices. Tensors of different devices in one operation raise, as CUDA does. Counted are operations, kernels, waits
of the host for the device (`.item()`, copies to the host, shapes that depend on values), bytes and floating-point
operations. The kernels and bytes of an operation are estimates; nothing here is a time that was measured.
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

FREE = {  # views, and memory that is only taken
    "_conj", "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "empty",
    "empty_like", "empty_strided", "expand", "is_same_size", "lift_fresh", "mT", "movedim", "narrow", "new_empty",
    "new_empty_strided", "permute", "real", "resize_", "select", "set_", "slice", "split", "split_with_sizes",
    "squeeze", "sym_numel", "sym_size", "sym_stride", "t", "tensor_split", "transpose", "unbind", "unfold", "unsqueeze",
    "view", "view_as",
}  # fmt: skip
WAITS = {  # the host waits: for a value, or for a shape that depends on values
    "_local_scalar_dense", "_unique", "_unique2", "allclose", "bincount", "equal", "histc", "is_nonzero", "item",
    "masked_select", "nonzero", "unique_consecutive", "unique_dim", "unique_dim_consecutive",
}  # fmt: skip
KERNELS = {  # of operations that launch several
    "sort": 9, "argsort": 9, "randperm": 10, "quantile": 12, "_unique2": 14, "unique_consecutive": 5, "topk": 4,
    "median": 4, "bincount": 4, "nonzero": 3, "repeat_interleave": 3, "cumsum": 2, "cummin": 2, "cummax": 2, "std": 2,
    "var": 2, "index_put_": 2, "_index_put_impl_": 2, "index_add": 2, "scatter": 2, "scatter_add": 2,
    "scatter_reduce": 2, "pad": 2, "constant_pad_nd": 2,
}  # fmt: skip
SLOW = {"exp", "exp2", "expm1", "log", "log1p", "log2", "softplus", "sigmoid", "pow", "tanh", "erf", "div", "sqrt"}
LOOPED = {"_linalg_eigh", "_linalg_svd"}  # one matrix after the other above 32 columns, about 20 kernels each


@dataclass(eq=False)
class Count:
    """What a device would have done."""

    operations: int = 0
    kernels: int = 0
    waits: int = 0
    bytes: int = 0
    flop: Counter[str] = field(default_factory=Counter)  # by the type of the numbers
    work: list[tuple[int, int, float, str]] = field(default_factory=list)  # kernels, bytes, flop, type of numbers
    waited_at: Counter[str] = field(default_factory=Counter)

    def wait(self, what: str) -> None:
        self.waits += 1
        self.waited_at[f"{what} at {_place()}"] += 1

    def add(self, name: str, inputs: list[Tensor], outputs: list[Tensor], flop: float) -> None:
        kernels, moved = KERNELS.get(name, 1), _moved(name, inputs, outputs)
        if name in LOOPED and inputs[0].shape[-1] > 32:
            kernels = 20 * max(1, inputs[0].shape[:-2].numel())
        kind = "float64" if any(each.dtype == torch.float64 for each in (*inputs, *outputs)) else "float32"
        self.operations, self.kernels, self.bytes = self.operations + 1, self.kernels + kernels, self.bytes + moved
        self.flop[kind] += int(flop)
        self.work.append((kernels, moved, flop, kind))


def _place() -> str:
    """The line of torchrank that asked."""
    for frame in reversed(traceback.extract_stack(limit=60)):
        if "/torchrank/" in frame.filename:
            return f"{frame.filename.rpartition('/torchrank/')[2]}:{frame.lineno} {frame.name}"
    return "a line of another package"


def _moved(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    written = sum(map(_size, outputs))
    if name in ("index", "index_select", "gather", "embedding"):  # reads what it writes, and where that is
        return 2 * written + sum(map(_size, inputs[1:]))
    if name in ("sort", "argsort") and inputs:  # passes over keys and places
        return 4 * inputs[0].numel() * (inputs[0].element_size() + 8)
    return written + sum(map(_size, inputs))


def _size(tensor: Tensor) -> int:
    """Bytes; of an expanded tensor those behind it."""
    whole: int = tensor.numel() * tensor.element_size()
    return min(whole, tensor.untyped_storage().nbytes()) if 0 in tensor.stride() else whole


def _flop(name: str, arguments: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]) -> float:
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = (each for each in arguments[-2:] if isinstance(each, Tensor))
        return 2.0 * left.numel() * right.shape[-1]
    if name in ("mv", "addmv", "addmv_", "dot"):
        return 2.0 * max(each.numel() for each in inputs)
    if name.startswith(("linalg_", "_linalg", "triangular", "cholesky")) and "norm" not in name and inputs[0].dim() > 1:
        return 2.0 * inputs[0].numel() * inputs[0].shape[-1]
    largest = max((each.numel() for each in outputs if each.is_floating_point()), default=0)
    return largest * (40.0 if name.rstrip("_") in SLOW else 2.0)


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
        if name not in FREE:
            self._count(func, name, tree_map(_held, args), tree_map(_held, kwargs), found)
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

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, found: Any) -> None:
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        outputs = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        by_mask = name in ("index", "index_put_", "_index_put_impl_") and any(
            isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        unknown = name == "repeat_interleave" and kwargs.get("output_size") is None and len(args) < 3
        if by_mask or unknown or name in WAITS:
            self.wait(name)
        for count in self.counts:
            count.add(name, inputs, outputs, _flop(name, args, inputs, outputs))

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
