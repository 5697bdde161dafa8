"""A loss whose slopes are known in closed form."""

import torch


class KnownGradient(torch.autograd.Function):
    """`loss (Q,)` per list with its slope at each of the scores `(N,)`, `ids (N,)` their lists. Differentiable once."""

    @staticmethod
    def forward(ctx, scores, loss, slopes, ids):
        ctx.save_for_backward(scores, slopes, ids)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        scores, slopes, ids = ctx.saved_tensors
        found = grad.index_select(0, ids) * slopes
        return _Once.apply(found, scores) if torch.is_grad_enabled() else found, None, None, None


class _Once(torch.autograd.Function):
    """A gradient that depends on the scores in a way nobody wrote down: torch's own `once_differentiable` says so only
    where the gradient of the loss has a gradient, and takes it for a constant everywhere else."""

    @staticmethod
    def forward(ctx, gradient, scores):
        return gradient.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "this loss is once_differentiable: its slopes are known in closed form, their slopes are not"
        )
