"""One row per function of `torchrank.functional` on matrices and rows. A new function gets its row here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import torchrank.functional as F
from torchrank.functional import spd

MODULES = {spd.__name__}  # every function exported from these has a row
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


PAIR = {"inputs": matrices(2), "batched": (True, True)}
ROWS = {
    "geometric_mean": Row(F.geometric_mean, **PAIR),
    "geometric_mean, t=.8": Row(F.geometric_mean, **PAIR, options={"t": 0.8}),
    "gmml": Row(F.gmml, **PAIR),
    "gmml, t=0": Row(F.gmml, **PAIR, options={"t": 0}),
    "gmml_factor, t=.25": Row(F.gmml_factor, **PAIR, options={"t": 0.25}),
    "gmml_factor, t=1": Row(F.gmml_factor, **PAIR, options={"t": 1}),
    "gmml_factor, eigh": Row(F.gmml_factor, **PAIR, options={"method": "eigh"}),
    "gmml_factor, svd": Row(F.gmml_factor, **PAIR, options={"method": "svd"}),
    "gmml_factor, dbase": Row(F.gmml_factor, **PAIR, options={"method": "dbase"}),
    "gmml_factor, gemm": Row(F.gmml_factor, **PAIR, options={"method": "gemm"}),
    "gmml_residual": Row(F.gmml_residual, matrices(3), (True, True, True), gradient=True),
    "pair_scatter": Row(F.pair_scatter, rows_of_two_kinds, (True, True), gradient=True),
    "project_psd": Row(F.project_psd, square, (True,)),
    "mahalanobis": Row(F.mahalanobis, rows_and_metrics, (True, False, False), gradient=True),
}
