"""Small problems for coordinate descent, and their loss as a double loop."""

from itertools import pairwise

import numpy as np
import torch

from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.functional.ragged import dominating, segment_sum
from torchrank.solvers.domination.coordinate_descent import coordinate_lists
from torchrank.solvers.domination.curvature import add_curvature
from torchrank.solvers.domination.penalised import Penalty

FEATURES = 8
PENALTIES = [Penalty(0.0, 0.0), Penalty(1.5, 0.0), Penalty(0.0, 0.7), Penalty(0.8, 0.4)]
MATRIX = torch.tensor([[0.0, 0, 0], [0.4, 0, 0], [1.1, 0.2, 0]], dtype=torch.float64)


def problem(*, grades=3, scale=1.0, seed=0, share=0.5):
    """Lists of 1..12 documents; a feature that is 0 everywhere, one constant in each list, one a copy of another."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(random.integers(1, 13, 9))))
    x = random.normal(size=(offsets[-1], FEATURES)) * (random.random((offsets[-1], FEATURES)) < share)
    labels = np.clip(np.round(x[:, 1] - x[:, 2] + random.normal(size=len(x)) + grades / 2), 0, grades - 1)
    x[:, 3], x[:, 6] = 0, x[:, 5]
    x[:, 4] = np.repeat(random.normal(size=9), np.diff(offsets))
    return scale * x, labels, offsets


def loss(scores, labels, offsets, matrix=None):
    """The loss summed over lists, and its slope at every score, as a double loop."""
    total, slopes = 0.0, np.zeros(len(scores))
    for start, stop in pairwise(offsets):
        for i in range(start, stop):
            below = [j for j in range(start, stop) if labels[j] < labels[i]]
            margin = [0.0 if matrix is None else matrix[int(labels[i]), int(labels[j])] for j in below]
            gaps = np.array([0.0] + [scores[j] - scores[i] + m for j, m in zip(below, margin, strict=True)])
            value = gaps.max() + np.log(np.exp(gaps - gaps.max()).sum())
            shares = np.exp(gaps - value)
            total += value
            slopes[below] += shares[1:]
            slopes[i] -= shares[1:].sum()
    return total, slopes


def objective(weight, penalty, x, labels, offsets):
    """Loss and penalty of one model."""
    w = weight[0].numpy()
    return loss(x @ w, labels, offsets)[0] + penalty.l1 * np.abs(w).sum() + penalty.l2 * (w**2).sum()


def batch_of(x, labels, offsets, sparse):
    rows = torch.from_numpy(x)
    return make_batch(
        SparseRows.from_dense(rows) if sparse else rows, torch.from_numpy(labels), torch.from_numpy(offsets)
    )


def setting(x, labels, offsets, *, sparse, block=1, margin=None):
    """The lists for coordinate descent, and the bound on their curvature."""
    batch = batch_of(x, labels, offsets, sparse)
    lists = coordinate_lists([batch], [margin])
    return lists, steepness_of(batch, block)


def steepness_of(batch, block=1):
    counts = segment_sum(dominating(batch.labels, batch.offsets).double(), batch.offsets)
    steepness = torch.zeros(1, batch.x.shape[1], dtype=torch.float64)
    add_curvature(batch.x, batch.offsets, steepness, torch.zeros_like(batch.query), counts, block=block)
    return steepness


def zeros(features=FEATURES, models=1):
    return torch.zeros(models, features, dtype=torch.float64)
