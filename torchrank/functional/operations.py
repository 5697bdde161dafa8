"""What autograd and the compiler are told: slopes in closed form, and functions that are one operation of a graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def readable(values: Tensor) -> bool:
    """Whether reading numbers is free: on the CPU, unless the function is being compiled and there are no numbers yet.

    >>> readable(torch.ones(1)), readable(torch.ones(1, device="meta"))
    (True, False)
    """
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


Sums = Callable[..., tuple[Tensor, Tensor]]


def one_operation(name: str, function: Sums, fake: Sums) -> Sums:
    """`function` as one operation of a compiled graph: the way it takes may depend on the numbers that it reads.

    Called as usual, it is the function itself. `fake` makes empty results of the right shape and dtype.
    """
    torch.library.custom_op(f"torchrank::{name}", function, mutates_args=()).register_fake(fake)

    def call(*arguments: Any) -> tuple[Tensor, Tensor]:
        if not torch.compiler.is_compiling():
            return function(*arguments)
        found: tuple[Tensor, Tensor] = getattr(torch.ops.torchrank, name)(*arguments)
        return found

    return call


def empty_sums(scores: Tensor, labels: Tensor, offsets: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Room for a loss `(Q,)` in float64 and its slopes `(N,)`: the `fake` of most operations."""
    like = scores.new_empty(0, dtype=torch.float32 if scores.device.type == "mps" else torch.float64)
    return like.new_empty(offsets.shape[0] - 1), like.new_empty(scores.shape[0])


class KnownGradient(torch.autograd.Function):
    """`loss (Q,)` per list with its slope at each of the scores `(N,)`; `ids (N,)` are the lists of the scores.

    The gradient exists, its gradient does not.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, loss: Tensor, slopes: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(scores, slopes, ids)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        scores, slopes, ids = ctx.saved_tensors
        found = grads[0].index_select(0, ids) * slopes
        return differentiable_once(found, scores) if torch.is_grad_enabled() else found, None, None, None


class _Once(torch.autograd.Function):
    """A gradient that depends on the scores in a way nobody wrote down.

    torch's own `once_differentiable` raises only where the gradient of the loss itself has a gradient; everywhere else
    it treats this gradient as a constant.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, scores: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError(
            "this loss is once_differentiable: its slopes are known in closed form, the slopes of its slopes are not"
        )


# `Function.apply` has no types
with_slopes: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = KnownGradient.apply
differentiable_once: Callable[[Tensor, Tensor], Tensor] = _Once.apply
