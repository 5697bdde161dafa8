"""Smoothing kernels of local metrics: what a distance, divided by its scale, contributes to a score."""

from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[[Tensor, float], Tensor]

# phi(z, beta) with z = distance / scale >= 0. A score is the weighted sum of phi over the metrics: higher is better.
KERNELS: dict[str, Kernel] = {
    "paper": lambda z, beta: -z * torch.exp(-z),  # Su, King & Lyu 2017, eq. 13: beyond z = 1 farther counts as better
    "demo": lambda z, beta: z * torch.exp(-z),  # what the authors' demo ranks by: sensible beyond z = 1 only
    "rbf": lambda z, beta: torch.exp(-beta / 2 * z.square()),
    "laplace": lambda z, beta: torch.exp(-beta / 2 * z),  # eq. 11
    "distance": lambda z, beta: -z,
}
