"""Smoothing kernels of local metrics: what a distance, in units of its scale, adds to a score."""

from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, float], Tensor]

# phi(z, beta), z = distance / scale >= 0; a score is the weighted sum of phi over the metrics, higher is more relevant
KERNELS: dict[str, Kernel] = {
    "paper": lambda z, beta: -z * torch.exp(-z),  # Su, King & Lyu 2017, eq. 13: beyond z = 1 farther counts as better
    "demo": lambda z, beta: z * torch.exp(-z),  # what the authors' demo ranks by: sensible beyond z = 1 only
    "rbf": lambda z, beta: torch.exp(-beta / 2 * z.square()),
    "laplace": lambda z, beta: torch.exp(-beta / 2 * z),  # eq. 11
    "distance": lambda z, beta: -z,
}
