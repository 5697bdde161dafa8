"""Pieces of work that run side by side on the CPU, one thread each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

LOOPED = 32  # columns above which CUDA solves one eigenproblem after the other

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def side_by_side(function: Callable[[Piece], Result], pieces: list[Piece], device: torch.device) -> list[Result]:
    """`function` of each piece; on the CPU as many pieces run at a time as torch has threads, each on one thread.

    LAPACK works on one small matrix after the other and gains next to nothing from several threads per matrix.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if device.type != "cpu" or min(threads, len(pieces)) < 2:
        return [function(piece) for piece in pieces]

    def alone(piece: Piece) -> Result:
        torch.set_num_threads(1)  # of this thread, like the two modes
        with torch.inference_mode(inference), torch.no_grad():
            return function(piece)

    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(alone, pieces))
    finally:
        torch.set_num_threads(threads)  # threads started later inherit the number that was set last


def many_eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.linalg.eigh` of symmetric matrices (B, D, D). On CUDA torch solves those of more than 32 columns one after
    the other, slower than one core: they are solved on the host, side by side.

    >>> many_eigh(torch.eye(2).expand(3, 2, 2))[0].shape
    torch.Size([3, 2])
    """
    on_host = matrices.device.type in ("cpu", "meta")
    if on_host or matrices.ndim != 3 or len(matrices) < 2 or matrices.shape[-1] <= LOOPED:
        values, vectors = torch.linalg.eigh(matrices)
        return values, vectors
    parts = list(matrices.cpu().chunk(torch.get_num_threads()))
    found = zip(*side_by_side(torch.linalg.eigh, parts, torch.device("cpu")), strict=True)
    values, vectors = (torch.cat(part).to(matrices.device) for part in found)
    return values, vectors
