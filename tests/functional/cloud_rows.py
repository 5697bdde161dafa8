"""Rows of clouds for the tests of clouds and Gaussians."""

import itertools

import numpy as np
import torch

LENGTHS = [9, 0, 1, 3, 40, 2, 17, 8, 1, 25, 7]


def clouds(seed, *, lengths=LENGTHS, features=8, ratio=2.0):
    """Rows of lists whose standard deviations along random axes fall by `ratio`: no two directions are close."""
    draw = np.random.default_rng(seed)
    parts = []
    for length in lengths:
        axes = np.linalg.qr(draw.normal(size=(features, features)))[0]
        parts.append(
            draw.normal(size=(length, features)) * ratio ** -np.arange(features) @ axes + draw.normal(size=features)
        )
    return torch.tensor(np.concatenate(parts)), torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))


def draw(lengths, features=6, seed=0, ratio=2.0):
    """Rows with falling standard deviations, and offsets."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), features, dtype=torch.float64, generator=generator)
    return x * ratio ** -torch.arange(features), torch.tensor([0, *np.cumsum(lengths)])


def each(x, offsets):
    return [x[a:b].numpy() for a, b in itertools.pairwise(offsets.tolist())]


def same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
