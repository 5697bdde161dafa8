"""One row per function of `torchrank.functional` on matrices and rows. A new function gets its row here."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import torch

import torchrank.functional as F
from torchrank.functional import clouds, spd

MODULES = {spd.__name__, clouds.__name__}  # every function exported from these has a row
NUMBERS = {"choose_components"}  # but those that give one number for all
BATCH, D, M = 4, 5, 3


class Row(NamedTuple):
    function: Callable
    inputs: Callable[[torch.Generator], list[torch.Tensor]]
    batched: tuple[bool, ...]  # which inputs have the batch as first dimension; the result has it, too
    options: dict[str, Any] | None = None
    gradient: bool = False

    def __call__(self, *inputs):
        """The batched part of the result."""
        result = self.function(*inputs, **(self.options or {}))
        return result[:2] if isinstance(result, tuple) else (result,)

    def draw(self, seed: int) -> list[torch.Tensor]:
        return self.inputs(torch.Generator().manual_seed(seed))


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def matrices(count):
    def draw(generator):
        parts = [normal(generator, BATCH, 3 * D, D) for _ in range(count)]
        return [part.mT @ part for part in parts]

    return draw


def square(generator):
    return [normal(generator, BATCH, D, D)]


def rows_of_two_kinds(generator):
    return [normal(generator, BATCH, 6, D), normal(generator, BATCH, 7, D)]


def rows_and_metrics(generator):
    return [normal(generator, BATCH, D), normal(generator, M, D), normal(generator, M, D, 2)]


def lists_of_rows(generator, length=7, width=D):
    """Clouds whose directions differ well in variance."""
    return [normal(generator, BATCH, length, width) * 2.0 ** -torch.arange(width)]


def direction_sets(generator):
    """Of BATCH clouds and of M clouds."""
    return [torch.linalg.qr(normal(generator, count, D, 3))[0].mT for count in (BATCH, M)]


def weighted_directions(generator):
    u, v = direction_sets(generator)
    return [u, v, *(torch.rand(len(part), 3, dtype=torch.float64, generator=generator) for part in (u, v))]


def gaussian_sets(generator):
    means = [normal(generator, count, D) for count in (BATCH, M)]
    parts = [normal(generator, count, 3 * D, D) for count in (BATCH, M)]
    return [means[0], parts[0].mT @ parts[0], means[1], parts[1].mT @ parts[1]]


def on_lists(function):
    """`function` of rows `(BATCH, length, D)`, each element a list."""

    @wraps(function)
    def call(x, *arguments, **options):
        return function(x.flatten(0, 1), x.shape[1] * torch.arange(len(x) + 1, device=x.device), *arguments, **options)

    return call


def on_directions(function):
    """`function` of directions of full rank; of the nearest clouds only the similarity."""

    @wraps(function)
    def call(u, v, *eigenvalues, **options):
        if eigenvalues:
            options |= {"eigenvalues": eigenvalues[0], "eigenvalues_v": eigenvalues[1]}
        ranks = [torch.full((len(part),), 3, device=part.device) for part in (u, v)]
        result = function(u, ranks[0], v, ranks[1], **options)
        return result[0] if isinstance(result, tuple) else result

    return call


PAIR = {"inputs": matrices(2), "batched": (True, True)}
ROWS = {
    "geometric_mean": Row(F.geometric_mean, **PAIR),
    "geometric_mean, t=.8": Row(F.geometric_mean, **PAIR, options={"t": 0.8}),
    "gmml": Row(F.gmml, **PAIR),
    "gmml, t=0": Row(F.gmml, **PAIR, options={"t": 0}),
    "gmml_factor": Row(F.gmml_factor, **PAIR),
    "gmml_factor, t=.25": Row(F.gmml_factor, **PAIR, options={"t": 0.25}),
    "gmml_factor, t=1": Row(F.gmml_factor, **PAIR, options={"t": 1}),
    "gmml_residual": Row(F.gmml_residual, matrices(3), (True, True, True), gradient=True),
    "pair_scatter": Row(F.pair_scatter, rows_of_two_kinds, (True, True), gradient=True),
    "project_psd": Row(F.project_psd, square, (True,)),
    "cloud_pca, gram": Row(on_lists(F.cloud_pca), partial(lists_of_rows, length=4), (True,), {"components": 2}),
    "cloud_pca, covariance": Row(on_lists(F.cloud_pca), lists_of_rows, (True,), {"components": 3}),
    "cloud_similarity": Row(on_directions(F.cloud_similarity), direction_sets, (True, False)),
    "cloud_similarity, squared": Row(
        on_directions(F.cloud_similarity), direction_sets, (True, False), {"kind": "squared"}
    ),
    "cloud_similarity, subspace": Row(
        on_directions(F.cloud_similarity), direction_sets, (True, False), {"kind": "subspace"}
    ),
    "cloud_similarity, weighted": Row(
        on_directions(F.cloud_similarity), weighted_directions, (True, False, True, False), {"kind": "weighted"}
    ),
    "nearest_clouds": Row(on_directions(F.nearest_clouds), direction_sets, (True, False)),
    "nearest_clouds, k=2": Row(on_directions(F.nearest_clouds), direction_sets, (True, False), {"k": 2}),
    "cloud_moments": Row(on_lists(F.cloud_moments), lists_of_rows, (True,)),
    "cloud_gaussians": Row(on_lists(F.cloud_gaussians), lists_of_rows, (True,)),
    "gaussian_divergence": Row(F.gaussian_divergence, gaussian_sets, (True, True, False, False)),
    "gaussian_divergence, bhattacharyya": Row(
        F.gaussian_divergence, gaussian_sets, (True, True, False, False), {"kind": "bhattacharyya"}
    ),
    "mahalanobis": Row(F.mahalanobis, rows_and_metrics, (True, False, False), gradient=True),
}
