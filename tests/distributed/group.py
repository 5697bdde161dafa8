"""Processes of one fit as copies of this one, which has imported everything already."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from typing import Any

import torch


def start_group(world: int, run: Callable[..., None], *arguments: Any) -> list[ForkProcess]:
    """Start `run(rank, *arguments)` in so many processes, with the variables that torchrun would set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_join, args=(rank, world, port, run, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


def _join(rank: int, world: int, port: int, run: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)  # a copied process has none of the threads that torch has started
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    run(rank, *arguments)
