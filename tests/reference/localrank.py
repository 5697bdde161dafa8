"""LocalRank in plain numpy and scipy, list by list (Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 2)."""

import numpy as np
import torch
from scipy.cluster import hierarchy

from torchrank import RankingSet


def queries(seed, num_lists=14, noise=0.5, flat=True):
    """Lists of two types: their documents spread along one feature or another, and a third feature is good in the one
    type and bad in the other. With `flat`, list 2 has one document, list 5 equal ones, list 6 no pair."""
    random = np.random.default_rng(seed)
    rows, labels = [], []
    for number in range(num_lists):
        length = 1 if flat and number == 2 else int(random.integers(5, 14))
        sizes = np.array([3.0, 0.8, 1.0, 0.5] if number % 2 else [0.8, 3.0, 1.0, 0.5])
        x = random.standard_normal((length, 4)) * sizes + random.standard_normal(4)
        if flat and number == 5:
            x[:] = x[0]
        value = (x[:, 2] - x[:, 2].mean()) * (1 if number % 2 else -1) + noise * random.standard_normal(length)
        rows.append(x)
        labels.append(np.zeros(length) if flat and number == 6 else (value > 0.2) + (value > 1.0) * 1.0)
    offsets = np.cumsum([0, *map(len, rows)])
    return RankingSet(
        torch.tensor(np.concatenate(rows)).float(), torch.tensor(np.concatenate(labels)).float(), torch.tensor(offsets)
    )


def rows_of(lists):
    """The rows of each list as an array (n, D)."""
    return np.split(lists.x.double().numpy(), lists.offsets[1:-1].numpy())


def labels_of(lists):
    return np.split(lists.labels.double().numpy(), lists.offsets[1:-1].numpy())


# ---- shapes ---------------------------------------------------------------------------------------------------------


def shape(rows):
    """Directions (r, D), variances (r,) and total variance of a list, by its singular values."""
    centred = rows - rows.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    variances = values**2 / len(rows)
    rank = 0 if len(rows) == 1 or variances[0] < 1e-20 else min(len(rows) - 1, (variances > 1e-6 * variances[0]).sum())
    return directions[:rank], variances[:rank], variances.sum()


def choose_components(shapes, variance):
    """The smallest number of directions that explain this share on average."""
    shapes = [each for each in shapes if len(each[0])]
    count = 1
    while np.mean([variances[:count].sum() / total for _, variances, total in shapes]) < variance:
        count += 1
    return count


def similarity(one, other, components):
    """Equation 5, divided by the larger rank."""
    one, other = one[0][:components], other[0][:components]
    if not len(one) or not len(other):
        return 0.0
    return sum(abs(u @ v) for u, v in zip(one, other, strict=False)) / max(len(one), len(other))


class Plain:
    """Clusters of training lists; then, for other lists, the similarity to all training lists and the most similar."""

    def __init__(self, train, components=None, variance=0.8):
        self.shapes = [shape(rows) for rows in rows_of(train)]
        self.components = components or choose_components(self.shapes, variance)
        self.usable = [number for number, each in enumerate(self.shapes) if len(each[0])]
        kept = [self.shapes[number] for number in self.usable]
        self.distances = np.array([[1 - similarity(a, b, self.components) for b in kept] for a in kept])

    def labels(self, clusters):
        if clusters == 1:
            return np.zeros(len(self.shapes), dtype=int)
        tree = hierarchy.linkage(self.distances[np.triu_indices(len(self.usable), 1)], "complete")
        found = hierarchy.cut_tree(tree, min(clusters, len(self.usable))).flatten()
        _, first, number = np.unique(found, return_index=True, return_inverse=True)
        labels = np.full(len(self.shapes), -1)
        labels[self.usable] = np.argsort(np.argsort(first))[number]
        return labels

    def similarities(self, lists):
        return np.array(
            [[similarity(shape(rows), other, self.components) for other in self.shapes] for rows in rows_of(lists)]
        )

    def assign(self, lists, labels):
        """Cluster of each list, -1 where it has no shape."""
        found = []
        for rows, row in zip(rows_of(lists), self.similarities(lists), strict=True):
            best = max(self.usable, key=lambda number: (row[number], -number))
            found.append(labels[best] if len(shape(rows)[0]) else -1)
        return np.array(found)
