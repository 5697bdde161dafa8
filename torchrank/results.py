"""What a run leaves behind: `results.json` and, for paired tests, the per-query values in `per_query.npz`."""

import fcntl
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from torchrank.report.results import SCHEMA, write_atomically

PACKAGES = ("torchrank", "torch", "pytorch-lightning", "torchmetrics", "hydra-core", "numpy")


def record(
    name: str, config: dict[str, Any], settings: dict[str, Any], ranker: Any, data: Any, seconds: dict[str, float]
) -> dict[str, Any]:
    """What is known of a finished run."""
    measured = ranker.measured
    convention, measure = monitored(config["monitor"], data.conventions)
    return {
        "schema": SCHEMA,
        "name": name,
        "ranker": type(ranker).__name__,
        "options": dict(ranker.hparams),
        "data": data.title,
        "fold": data.fold,
        "seed": config["seed"],
        "config": config,
        "settings": settings,
        "versions": {package: version(package) for package in PACKAGES},
        "git": git_commit(),
        "selection": {
            "measure": config["monitor"],
            "value": measured["val"][convention]["measures"][measure],
            "mode": config["mode"],
        },
        "certificate": ranker.certificate,
        "findings": ranker.findings,
        "density": ranker.density(),
        "steps": ranker.trainer.global_step,  # of the optimizer: rounds, where a ranker fits by rounds
        "num_lists": {split: len(lists) for split, lists in data.sets.items()},
        **{split: {name: without(part, "per_query") for name, part in of.items()} for split, of in measured.items()},
        "per_query": "per_query.npz" if "test" in measured else None,
        "seconds": seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peak_gpu_memory_mb": torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0,
    }


def write_results(folder: Path, results: dict[str, Any], ranker: Any, data: Any) -> None:
    """The values per query first, so that a `results.json` is never without them."""
    if results["per_query"] is not None:
        ids = data.sets["test"].query_ids
        columns = {"query": np.asarray(range(len(data.sets["test"])) if ids is None else ids).astype(str)}
        for name, part in ranker.measured["test"].items():
            columns |= {f"{name}/{measure}": values.numpy() for measure, values in part["per_query"].items()}
        write_atomically(folder / results["per_query"], lambda file: np.savez(file, **columns))  # type: ignore[arg-type]
    write_atomically(folder / "results.json", lambda file: file.write(json.dumps(results, indent=1).encode()))


def monitored(monitor: str, conventions: list[str]) -> tuple[str, str]:
    """`val/ndcg@10` -> (first convention, "ndcg@10"); `val/letor/map` -> ("letor", "map")."""
    _, *convention, measure = monitor.split("/")
    return (convention[0] if convention else conventions[0]), measure


def finished(folder: Path, config: dict[str, Any]) -> dict | None:
    """The results in `folder` if they are those of this configuration (a sweep that is started again skips them)."""
    try:
        results = json.loads((folder / "results.json").read_text())
        whole = results["per_query"] is None or (folder / results["per_query"]).exists()
        same = results["schema"] == SCHEMA and results["config"] == config
    except (OSError, ValueError, KeyError, TypeError):  # none, or one that was damaged
        return None
    return results if whole and same else None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuses a folder in which another run is under way. The lock ends with the process, however it ends; on a file
    system without locks all are let in."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise FileExistsError(
            f"another run is under way in {folder}: wait for its end, or choose another hydra.run.dir (hydra.sweep.dir)"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process that lives on holds the file too
        os.close(handle)


def forget_results(folder: Path) -> None:
    """Before a run writes into a folder that was used before: no result of another run survives its failure."""
    for name in ("results.json", "per_query.npz"):
        (folder / name).unlink(missing_ok=True)


def without(part: dict, key: str) -> dict:
    return {name: value for name, value in part.items() if name != key}


def git_commit() -> str | None:
    """The commit of the checkout that torchrank runs from, None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def print_results(results: dict, folder: Path) -> None:
    """A table of the test measures (of validation where nothing was tested), one row per convention if they fit."""
    console = Console(soft_wrap=True)
    split = "test" if "test" in results else "val"  # data=files may come without test lists
    parts = results[split]
    measures = list(dict.fromkeys(measure for part in parts.values() for measure in part["measures"]))
    title = f"{results['name']} on {results['data']}, fold {results['fold']}, {split}"
    rows = [[name, *(_digits(part["measures"].get(m)) for m in measures)] for name, part in parts.items()]
    cells = [["convention", *measures], *rows]
    width = sum(3 + max(map(len, column)) for column in zip(*cells, strict=True))
    if width >= console.width:  # many measures: one per line
        cells = [list(column) for column in zip(*cells, strict=True)]
    table = Table(*cells[0], title=title)
    for row in cells[1:]:
        table.add_row(*row)
    console.print(table)
    for name, part in parts.items():
        console.print(f"{name}: {part['text']}; {part['empty']} of {part['lists']} queries have no relevant document.")
    if results["certificate"]:
        found = (f"{name} {value:.4g}" for name, value in results["certificate"].items())
        console.print(f"certificate: {', '.join(found)}")
    if results["density"] is not None:
        console.print(f"weights that are not 0: {results['density']:.2%}")
    for name, value in results["findings"].items():
        console.print(f"{name}: {value}")
    selection, seconds = results["selection"], results["seconds"]
    console.print(
        f"{selection['measure']} {selection['value']:.4f}; data {seconds['data']:.1f} s, fit {seconds['fit']:.1f} s, "
        f"evaluation {seconds['test']:.1f} s, peak memory {results['peak_memory_mb']:.0f} MB. Results in {folder}"
    )
