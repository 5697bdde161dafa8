"""Losses whose slopes are known in closed form."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
