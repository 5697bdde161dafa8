"""A loss whose slopes are known in closed form."""

import torch


class KnownGradient(torch.autograd.Function):
    """`loss (Q,)` per list with its slope at each of the scores `(N,)`, `ids (N,)` their lists. Differentiable once."""

    @staticmethod
    def forward(ctx, scores, loss, slopes, ids):
        ctx.save_for_backward(slopes, ids)
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        slopes, ids = ctx.saved_tensors
        return grad.index_select(0, ids) * slopes, None, None, None
