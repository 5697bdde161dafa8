"""What autograd and the compiler are told: slopes in closed form, and functions that are one operation of a graph."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_functorch_wrapped_tensor
from torch.autograd import forward_ad


def readable(values: Tensor) -> bool:
    """Whether reading numbers is free: on the CPU, unless the function is being compiled and there are no numbers yet,
    or a transformation of torch.func has wrapped them.

    >>> readable(torch.ones(1)), readable(torch.ones(1, device="meta"))
    (True, False)
    """
    return values.device.type == "cpu" and not torch.compiler.is_compiling() and not is_functorch_wrapped_tensor(values)


def transforming() -> bool:
    """Whether a transformation of torch.func is at work, on whatever tensors.

    >>> transforming()
    False
    """
    return torch._C._are_functorch_transforms_active()


def in_forward_mode() -> bool:
    """Whether derivatives are taken forwards, which `torch.no_grad` does not switch off.

    >>> in_forward_mode()
    False
    """
    return forward_ad._current_level >= 0


def result_dtype(scores: Tensor) -> torch.dtype:
    """The dtype of a result: that of the scores, float32 for half precision, torch's default for integers."""
    if not scores.is_floating_point():
        return torch.get_default_dtype()
    return torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else scores.dtype


Sums = Callable[..., tuple[Tensor, Tensor]]
Found = TypeVar("Found")
Options = dict[str, Any]


def one_operation(name: str, function: Callable[..., Found], fake: Callable[..., Found]) -> Callable[..., Found]:
    """`function` as one operation of a compiled graph: the way it takes may depend on the numbers that it reads.

    Called as usual, it is the function itself. `fake` makes empty results of the right shape and dtype.
    """
    torch.library.custom_op(f"torchrank::{name}", function, mutates_args=()).register_fake(fake)

    def call(*arguments: Any) -> Found:
        if not torch.compiler.is_compiling():
            return function(*arguments)
        found: Found = getattr(torch.ops.torchrank, name)(*arguments)
        return found

    return call


def empty_sums(scores: Tensor, labels: Tensor, offsets: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Room for a loss `(Q,)` in float64 and its slopes `(N,)`: the `fake` of most operations."""
    like = scores.new_empty(0, dtype=torch.float32 if scores.device.type == "mps" else torch.float64)
    return like.new_empty(offsets.shape[0] - 1), like.new_empty(scores.shape[0])


@dataclass(frozen=True)
class ListLoss:
    """A loss per list that works with autograd, torch.func and torch.compile.

    `sums(scores, labels, offsets, weights, **options)` gives the loss of each list, `(Q,)`, and its slopes at the
    scores, `(N,)`. It sees plain tensors without a graph: it may read numbers, write in place and take any way it
    likes. Under `torch.func.vmap` it sees all B copies at once, as B * Q lists end to end. `weights (N,)` may be None;
    those of whole lists multiply what it finds.

    `products(scores, labels, offsets, weights, direction, **options)` gives the second derivative of each list times
    its part of `direction (N,)`, again `(N,)`; without it second derivatives are refused. Third ones always are.

    >>> def squares(scores, labels, offsets, weights):
    ...     rest = scores - labels if weights is None else weights * (scores - labels)
    ...     ids = torch.repeat_interleave(offsets.diff(), output_size=len(scores))
    ...     return scores.new_zeros(len(offsets) - 1).index_add_(0, ids, rest * (scores - labels) / 2), rest
    >>> loss = ListLoss("half the squares", squares)
    >>> scores, labels, offsets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0, 2, 3])
    >>> loss(scores, labels, offsets), torch.func.grad(lambda s: loss(s, labels, offsets).sum())(scores)
    (tensor([2.5000, 2.0000]), tensor([1., 2., 2.]))
    """

    name: str  # for messages
    sums: Sums
    products: Callable[..., Tensor] | None = None
    formula: Callable[..., Tensor] | None = None  # what a compiled graph is made of, if not of `sums`

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        offsets: Tensor,
        weights: Tensor | None = None,
        list_weights: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The loss of each list times its weight, `(Q,)`, in the dtype of results."""
        if weights is not None and weights.requires_grad:
            raise ValueError(f"{self.name} has no gradient at the weights of entries: give weights.detach()")
        if not torch.compiler.is_compiling():
            values = _per_list(self, options, scores, labels, offsets, weights)[0]
        elif self.formula is None:
            found = self.found(scores.detach(), labels, offsets, weights, **options)
            values = _known_gradient(scores, *found, offsets)
        else:
            values = self.formula(scores, labels, offsets, weights, **options).to(result_dtype(scores))
        return values if list_weights is None else values * list_weights.to(values.dtype)

    def found(
        self, scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Loss and slopes in the dtype of results."""
        loss, slopes = self.sums(scores, labels, offsets, weights, **options)
        return loss.to(result_dtype(scores)), slopes.to(result_dtype(scores))


def no_curvature(*lists: Any, **options: Any) -> Tensor:
    """The `products` of a loss that is linear in pieces, as torch takes the second derivative of a hinge: 0.

    >>> no_curvature(None, None, None, None, torch.ones(2))
    tensor([0., 0.])
    """
    return torch.zeros_like(lists[-1])


def formula_loss(name: str, formula: Callable[..., Tensor]) -> ListLoss:
    """A `ListLoss` from its value alone: `formula(scores, labels, offsets, weights, **options)` gives the loss of each
    list, `(Q,)`, by operations that torch can differentiate.

    >>> def squares(scores, labels, offsets, weights):
    ...     ids = torch.repeat_interleave(offsets.diff(), output_size=len(scores))
    ...     return scores.new_zeros(len(offsets) - 1).index_add(0, ids, (scores - labels) ** 2)
    >>> formula_loss("squares", squares)(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]), torch.tensor([0, 2]))
    tensor([5.])
    """

    def sums(scores: Tensor, *lists: Any, **options: Any) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = scores.detach().requires_grad_()
            loss = formula(point, *lists, **options)
            return loss.detach(), _gradient(loss.sum(), point)

    def products(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Any, to: Tensor, **options: Any) -> Tensor:
        with torch.enable_grad():
            point = scores.detach().requires_grad_()
            slopes = _gradient(formula(point, labels, offsets, weights, **options).sum(), point, create_graph=True)
            return _gradient((slopes * to).sum(), point)

    return ListLoss(name, sums, products, formula)


def _gradient(total: Tensor, point: Tensor, create_graph: bool = False) -> Tensor:
    """Of a number that may not depend on the point at all."""
    if not total.requires_grad:
        return torch.zeros_like(point)
    return torch.autograd.grad(total, point, create_graph=create_graph, materialize_grads=True)[0]


class _Function(torch.autograd.Function):
    """A function that is called as those without `setup_context` unless torch.func is at work: torch looks up the
    signature of `forward` in every call, which takes longer than a loss of 1,000 entries."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        call: Any = super() if transforming() else super(torch.autograd.Function, cls)
        return call.apply(*arguments)


class _PerList(_Function):
    """The loss of each list and its slopes. Only the loss has a graph.

    Written as torch.func asks: what the derivatives need is returned, so that every transformation wraps it.
    """

    @staticmethod
    def forward(
        loss: ListLoss, options: Options, scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return loss.found(scores, labels, offsets, weights, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.loss, ctx.options, *lists = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*lists, output[1])
        ctx.save_for_forward(*lists, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *lists, slopes = ctx.saved_tensors
        if grads[0] is None:
            return (None,) * 6
        if torch.is_grad_enabled():  # somebody may differentiate this gradient too
            slopes = _slopes(ctx.loss, ctx.options, *lists, slopes)
        return None, None, _scaled(slopes, grads[0], lists[2]), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, None]:
        *lists, slopes = ctx.saved_tensors
        _refuse_forward_over_forward(ctx.loss)
        slopes = _slopes(ctx.loss, ctx.options, *lists, slopes)
        terms = (slopes * tangents[2]).flatten(1).sum(1) if slopes.ndim > 1 else slopes * tangents[2]
        return terms.new_zeros(len(lists[2]) - 1).index_add(0, _owners(lists[2], len(terms)), terms), None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], loss: ListLoss, options: Options, *lists: Any) -> tuple[Any, Any]:
        copies = _Copies(info.batch_size, dims, options, lists)
        values, slopes = _per_list(loss, copies.options, *copies.lists)
        return (copies.apart(values), copies.apart(slopes)), (0, 0)


class _Slopes(_Function):
    """Slopes that are known already, with a derivative."""

    @staticmethod
    def forward(loss: ListLoss, options: Options, *lists: Any) -> Tensor:
        slopes: Tensor = lists[-1]
        return slopes.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.loss, ctx.options, *lists, _ = inputs
        ctx.save_for_backward(*lists)
        ctx.save_for_forward(*lists)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, _products(ctx.loss, ctx.options, *ctx.saved_tensors, grads[0]), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return _products(ctx.loss, ctx.options, *ctx.saved_tensors, tangents[2])

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], loss: ListLoss, options: Options, *lists: Any) -> tuple[Any, Any]:
        copies = _Copies(info.batch_size, dims, options, lists)
        return copies.apart(_slopes(loss, copies.options, *copies.lists)), 0


class _Products(_Function):
    """The second derivative times a direction: linear and symmetric in the direction."""

    @staticmethod
    def forward(loss: ListLoss, options: Options, *lists: Any) -> Tensor:
        if loss.products is None:
            raise RuntimeError(
                f"{loss.name} is once_differentiable: its slopes are known in closed form, the slopes of its slopes "
                "are not"
            )
        return loss.products(*lists, **options).to(lists[-1].dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.loss, ctx.options, *lists, _ = inputs
        ctx.save_for_backward(*lists)
        ctx.save_for_forward(*lists)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[2]:
            raise RuntimeError(f"{ctx.loss.name} has no third derivative")
        return *(None,) * 6, _products(ctx.loss, ctx.options, *ctx.saved_tensors, grads[0])

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], loss: ListLoss, options: Options, *lists: Any) -> tuple[Any, Any]:
        copies = _Copies(info.batch_size, dims, options, lists)
        return copies.apart(_products(loss, copies.options, *copies.lists)), 0


class _Copies:
    """The lists of all copies of vmap, end to end."""

    def __init__(self, count: int, dims: tuple[Any, ...], options: Options, lists: tuple[Any, ...]):
        _, option_dims, *dims_of_lists = dims
        if batched := [name for name, dim in option_dims.items() if dim is not None]:
            raise ValueError(f"vmap over {batched[0]} is not supported: loop over its values")
        self.count, self.options = count, dict(options)
        if options.get("num_pairs") is not None:  # of labels that differ from copy to copy they are not known
            same = dims_of_lists[1] is None and dims_of_lists[2] is None
            self.options["num_pairs"] = count * options["num_pairs"] if same else None
        scores, labels, offsets, *others = map(self._rows, lists, dims_of_lists)
        first = torch.arange(count, device=offsets.device)[:, None] * scores.shape[1]
        ends = (offsets[:, 1:] + first).flatten()
        flat = [part if part is None else part.flatten(0, 1) for part in (scores, labels, *others)]
        self.lists = [*flat[:2], torch.cat([ends.new_zeros(1), ends]), *flat[2:]]

    def _rows(self, part: Any, dim: int | None) -> Any:
        """One row for each copy."""
        if part is None:
            return None
        return part.expand(self.count, *part.shape) if dim is None else part.movedim(dim, 0)

    def apart(self, values: Tensor) -> Tensor:
        """What was found for all copies, `(B * n, ...)`, as `(B, n, ...)`."""
        return values.view(self.count, len(values) // self.count, *values.shape[1:])


class _KnownGradient(torch.autograd.Function):
    """A `_PerList` of a compiled graph, which takes no forward mode and no second derivatives."""

    @staticmethod
    def forward(scores: Tensor, loss: Tensor, slopes: Tensor, offsets: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        slopes, offsets = ctx.saved_tensors
        return _scaled(slopes, grads[0], offsets), None, None, None


def _scaled(slopes: Tensor, pulls: Tensor, offsets: Tensor) -> Tensor:
    """Every slope times the pull of its list. Lists of which the mean is taken have one pull: nothing is looked up."""
    if len(pulls) and readable(pulls) and not torch.is_grad_enabled() and not in_forward_mode():
        lowest, highest = pulls.aminmax()
        if lowest.tolist() == highest.tolist():
            return slopes * lowest
    return pulls.index_select(0, _owners(offsets, len(slopes))).view(-1, *[1] * (slopes.ndim - 1)) * slopes


def _owners(offsets: Tensor, num_entries: int) -> Tensor:
    """The list of each entry, `(N,)`, also where vmap has other offsets for each copy."""
    if torch.compiler.is_compiling() or not is_functorch_wrapped_tensor(offsets):
        return torch.repeat_interleave(offsets.diff(), output_size=num_entries)
    begins = torch.zeros(num_entries + 1, dtype=torch.int64, device=offsets.device)
    return begins.scatter_add(0, offsets[1:].long(), torch.ones_like(offsets[1:]).long())[:-1].cumsum(0)


def _refuse_forward_over_forward(loss: ListLoss) -> None:
    """Inside of another forward derivative torch takes that of a `jvp` for 0."""
    levels = get_interpreter_stack() or []
    if sum(level.key() == TransformType.Jvp for level in levels) > 1:
        raise RuntimeError(f"{loss.name} has no forward mode inside forward mode: use torch.func.hessian")


for _each in (_PerList, _Slopes, _Products, _KnownGradient):  # else `apply` finds it out in every call
    vars(_each.forward)["__signature__"] = inspect.signature(_each.forward)

# `Function.apply` has no types
_per_list: Callable[..., tuple[Tensor, Tensor]] = _PerList.apply
_slopes: Callable[..., Tensor] = _Slopes.apply
_products: Callable[..., Tensor] = _Products.apply
_known_gradient: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _KnownGradient.apply
