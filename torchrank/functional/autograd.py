"""Losses whose gradient has a closed form, because the graph of torch would need too much memory or time.

All other losses are formulas that torch differentiates.
"""

import inspect
from ast import literal_eval
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torchrank.functional.arrays import Array, as_argument, host, wide
from torchrank.functional.lists import Given, Lists, Weighted, per_entry

Options = dict[str, Any]


def scaled(
    upstream: Tensor, gradient: Tensor, scores: Tensor, labels: Tensor, lists: Lists, *others: Any, **options: Any
) -> Tensor:
    """The gradient of each entry times the upstream gradient of its list, which is the same for all after `.mean()`."""
    if upstream.stride() == (0,) and len(upstream):
        return gradient * upstream[0]
    return gradient * lists.each(upstream).view(-1, *[1] * (gradient.ndim - 1))


class OnceDifferentiable:
    """A loss per list, `(Q,)` in float64, whose gradient at the scores is known in closed form.

    `sums(scores, labels, lists, weights, order, **options)` gives the loss of each list; for order 1 also its gradient
    `(N,)`; and for order 2 the diagonal of the second derivative, where there is one. It sees plain tensors without a
    graph. The gradient is computed only if autograd may need it. Labels and weights have none, and second derivatives,
    forward mode and vmap are not supported: each is refused in one line.

    `backward(upstream, gradient, scores, labels, lists, weights, **options)` gives the gradient at the scores: by
    default the gradient of `sums` times the upstream gradient of the list. With any other `backward`, `sums` gives
    values of entries instead of lists.

    >>> def squares(scores, labels, lists, weights, order):
    ...     rest = scores - labels
    ...     return (lists.sum(rest.square()), 2 * rest)[: order + 1]
    >>> loss, scores = OnceDifferentiable("squares", squares), torch.tensor([1.0, 3.0], requires_grad=True)
    >>> torch.autograd.grad(loss(scores, torch.tensor([0.0, 1.0]), Lists.of([0, 2])).sum(), scores)
    (tensor([2., 4.]),)
    """

    def __init__(self, name: str, sums: Callable[..., tuple[Tensor, ...]], backward: Callable[..., Tensor] = scaled):
        self.name, self.sums, self.backward = name, sums, backward
        ALL[name] = self

    def __call__(
        self, scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None = None, **options: Any
    ) -> Tensor:
        self.check_constant(labels=labels, weights=weights)
        if torch.compiler.is_compiling():
            return compiled(scores, labels, lists.offsets, weights, *_encoded(self.name, options))
        wanted = scores.requires_grad and torch.is_grad_enabled()
        tensors = (scores, labels, lists.offsets) if weights is None else (scores, labels, lists.offsets, weights)
        if not wanted and all(host(each) is not None for each in tensors) and unpack_dual(scores).tangent is None:
            return self.sums(scores, labels, lists, weights, 0, **options)[0]
        return once(self, lists, options, int(wanted), scores, labels, lists.offsets, weights)[0]

    def with_gradient(self, scores: Tensor, labels: Tensor, lists: Lists, **options: Any) -> tuple[Tensor, Tensor]:
        """The loss and its gradient, without a graph."""
        if torch.compiler.is_compiling():
            return _loss(scores, labels, lists.offsets, None, *_encoded(self.name, options))  # type: ignore[no-any-return]
        return self.sums(scores, labels, lists, None, 1, **options)  # type: ignore[return-value]

    def diagonal(self, scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, **options: Any) -> Tensor:
        """The diagonal of the second derivative at the scores, `(N,)`."""
        return self.sums(scores, labels, lists, weights, 2, **options)[2]

    def check_constant(self, **parts: Tensor | None) -> None:
        """Refuses labels or weights that carry a graph, which would get no gradient."""
        for name, part in parts.items():
            if part is not None and part.requires_grad:
                raise ValueError(f"{self.name} has no gradient at {name}: give {name}.detach()")

    def refuse(self, what: str) -> RuntimeError:
        return RuntimeError(f"{self.name} has no {what}: its gradient is known in closed form and differentiated once")


ALL: dict[str, OnceDifferentiable] = {}


class _Once(torch.autograd.Function):
    """The loss of each list and its gradient; only the loss has a graph."""

    @staticmethod
    def forward(
        loss: OnceDifferentiable, lists: Lists, options: Options, order: int, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        scores, labels, offsets, weights = tensors
        lists = lists if lists.offsets is offsets else lists.by(offsets)
        values, *gradient = loss.sums(scores, labels, lists, weights, order, **options)
        return values, gradient[0] if gradient else values.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.loss, ctx.lists, ctx.options, _, *tensors = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], *tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # this gradient may be differentiated too
            product = _gradient(ctx.loss, ctx.lists, ctx.options, upstream[0], *ctx.saved_tensors)
        else:
            gradient, scores, labels, offsets, weights = ctx.saved_tensors
            lists = ctx.lists if ctx.lists.offsets is offsets else ctx.lists.by(offsets)
            product = ctx.loss.backward(upstream[0], gradient, scores, labels, lists, weights, **ctx.options)
        return None, None, None, None, product.to(ctx.saved_tensors[1].dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise ctx.loss.refuse("forward mode")

    @staticmethod
    def vmap(info: Any, dims: Any, loss: OnceDifferentiable, *arguments: Any) -> Any:
        raise loss.refuse("vmap")


class _Gradient(torch.autograd.Function):
    """The gradient at the scores, which refuses to be differentiated."""

    @staticmethod
    def forward(loss: OnceDifferentiable, lists: Lists, options: Options, *tensors: Any) -> Tensor:
        upstream, gradient, scores, labels, offsets, weights = tensors
        return loss.backward(upstream, gradient, scores, labels, lists.by(offsets), weights, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.loss = inputs[0]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        raise ctx.loss.refuse("second derivative")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise ctx.loss.refuse("second derivative")

    @staticmethod
    def vmap(info: Any, dims: Any, *arguments: Any) -> tuple[Tensor, int]:
        """For a Jacobian: the upstream gradients of several values, one after another."""
        loss, lists, options, upstream, *saved = arguments
        return torch.stack([_gradient(loss, lists, options, row, *saved) for row in upstream.movedim(dims[3], 0)]), 0


class _Compiled(torch.autograd.Function):
    """The same in a compiled graph, as two operations that may branch on values."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, *arguments: Any) -> Tensor:
        values, gradient = _loss(scores, *arguments)
        ctx.options = arguments[-2:]
        ctx.save_for_backward(gradient, scores, *arguments[:-2])
        return values  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return _loss_gradient(upstream[0], *ctx.saved_tensors, *ctx.options), *[None] * 6


once: Callable[..., tuple[Tensor, Tensor]] = _Once.apply  # `apply` has no types
_gradient: Callable[..., Tensor] = _Gradient.apply
compiled: Callable[..., Tensor] = _Compiled.apply
for _function in (_Once, _Gradient):  # otherwise torch inspects the signature in every call
    vars(_function.forward)["__signature__"] = inspect.signature(_function.forward)


@torch.library.custom_op("torchrank::loss", mutates_args=())
def _loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    margin: Tensor | None,
    numbers: list[float],
    text: str,
) -> tuple[Tensor, Tensor]:
    loss, options = _decoded(margin, numbers, text)
    lists = Lists(offsets, len(scores)).about(labels)
    values, *gradient = loss.sums(scores, labels, lists, weights, 1, **options)
    return values, gradient[0].to(scores.dtype) if loss.backward is scaled else torch.zeros_like(scores)


@torch.library.custom_op("torchrank::loss_gradient", mutates_args=())
def _loss_gradient(
    upstream: Tensor,
    gradient: Tensor,
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    margin: Tensor | None,
    numbers: list[float],
    text: str,
) -> Tensor:
    loss, options = _decoded(margin, numbers, text)
    lists, known = Lists(offsets, len(scores)).about(labels), gradient if loss.backward is scaled else gradient[:0]
    return loss.backward(upstream, known, scores, labels, lists, weights, **options).to(scores.dtype).clone()


def _encoded(name: str, options: Options) -> tuple[Tensor | None, list[float], str]:
    """A loss and its options as arguments of an operation: a graph may not know the values of numbers yet."""
    keys = [key for key, value in options.items() if isinstance(value, int | float)]
    whole = [key for key in keys if isinstance(options[key], int)]
    others = {key: value for key, value in options.items() if key not in keys and key != "margin"}
    return options.get("margin"), [float(options[key]) for key in keys], repr((name, keys, whole, others))


def _decoded(margin: Tensor | None, numbers: list[float], text: str) -> tuple[OnceDifferentiable, Options]:
    name, keys, whole, options = literal_eval(text)
    for key, number in zip(keys, numbers, strict=True):
        options[key] = int(number) if key in whole else number
    return ALL[name], options if margin is None else options | {"margin": margin}


@_loss.register_fake
def _(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Any, margin: Any, numbers: Any, text: str) -> Any:
    count = offsets.shape[0] - 1 if ALL[literal_eval(text)[0]].backward is scaled else scores.shape[0]
    return wide(scores.new_empty(count)), torch.empty_like(scores)


@_loss_gradient.register_fake
def _(upstream: Tensor, gradient: Tensor, scores: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(scores)


DIAGONALS: dict[Callable[..., Any], Callable[..., Tensor]] = {}
Diagonal = Callable[..., Tensor]


def diagonal_of(loss: Callable[..., Tensor], **fixed: Any) -> Callable[[Diagonal], Diagonal]:
    """Registers `function(scores, labels, lists, weights, **options)` as the diagonal of the second derivative of a
    loss, `(N,)`. Options have the defaults of the loss; `fixed` are those that the loss itself gives."""
    parameters = inspect.signature(loss).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY} | fixed
    for name in ("weights", *Weighted.__annotations__, *Given.__annotations__):
        defaults.pop(name, None)

    def register(function: Diagonal) -> Diagonal:
        def diagonal(
            scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **options: Any
        ) -> Tensor:
            return function(scores, labels, offsets, weights, **(defaults | options))

        DIAGONALS[loss] = per_entry(diagonal, columns=True)
        return function

    return register


def derivatives(loss: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The gradient of a loss and the diagonal of its second derivative, as boosting and Newton steps need them.

    Args:
        loss: one of `LOSSES`, or any function of scores, labels and offsets that torch can differentiate.

    Returns:
        A function of the arguments of the loss, which gives the gradient of the sum over all lists and the diagonal of
        its second derivative, of the shape of the scores. The diagonal is None if no formula for it is known.

    Example:
        >>> from torchrank.functional import ranknet_loss
        >>> derivatives(ranknet_loss)(torch.tensor([0.0, 0.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))
        (tensor([ 0.5000, -0.5000]), tensor([0.2500, 0.2500]))
    """

    def call(scores: Array, labels: Array, offsets: Array = None, **options: Any) -> tuple[Tensor, Tensor | None]:
        point = as_argument("scores", scores, None, padded=True).detach()
        point = (point if point.is_floating_point() else wide(point)).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(point, labels, offsets, **options).sum(), point)
        diagonal = DIAGONALS.get(loss)
        return gradient, None if diagonal is None else diagonal(point.detach(), labels, offsets, **options)

    return call
