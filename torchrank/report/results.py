"""The results files that runs of train.py leave behind: what is read of them, and how files are written whole."""

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """One finished run: what was fitted, how it was chosen and what it reached. Per-query values are read on demand."""

    folder: Path
    name: str  # the method
    ranker: str
    data: str
    fold: int | str | None
    seed: int
    settings: dict[str, Any]  # the overrides that make this run differ from others of the method
    measure: str  # of selection, such as val/ndcg@10
    value: float
    mode: str  # max or min
    test: dict[str, dict]  # convention -> text, lists, empty, measures
    fit_seconds: float
    per_query: str  # file name below the folder
    val: dict[str, dict] = field(default_factory=dict)  # as test
    density: float | None = None  # share of the weights that are not 0, where a ranker counts them
    proved: bool | None = None  # whether the fit ended by its certificate; None where it has none
    findings: dict[str, Any] = field(default_factory=dict)  # what else the fit has to say
    steps: int | None = None  # of the optimizer: rounds, where a ranker fits by rounds; None in older files

    def queries(self, convention: str, measure: str) -> tuple[NDArray, NDArray[np.float64]]:
        """Query ids `(Q,)` and the test measure of each query `(Q,)`; nan = left out."""
        path, key = self.folder / self.per_query, f"{convention}/{measure}"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                ids, values = arrays["query"], arrays[key].astype(np.float64)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: cannot read the per-query values 'query' and '{key}' ({error})") from error
        if ids.shape != values.shape or len(np.unique(ids)) != len(ids):
            raise ValueError(f"{path}: {ids.shape} query ids, {values.shape} values of '{key}', or an id appears twice")
        return ids, values


def read_runs(folder: str | Path) -> list[Run]:
    """Every run below the folder that has a results.json, in the order of the paths.

    >>> read_runs("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: no/such/folder is not a folder
    """
    if not Path(folder).is_dir():
        raise ValueError(f"{folder} is not a folder")
    runs = [read_run(path) for path in sorted(Path(folder).rglob("results.json"))]
    seen: dict[tuple, Run] = {}
    for run in runs:
        key = (run.name, run.data, run.fold, run.seed, json.dumps(run.settings, sort_keys=True))
        if key in seen:
            raise ValueError(f"the same run twice, in {seen[key].folder} and {run.folder}: remove one of them")
        seen[key] = run
    return runs


def read_run(path: Path) -> Run:
    """One results.json as a Run; whatever is wrong with it is a ValueError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this torchrank reads {SCHEMA}")
        selection = content["selection"]
        same = {key: content[key] for key in ("name", "ranker", "data", "fold", "seed", "settings", "per_query")}
        return Run(
            folder=path.parent,
            measure=selection["measure"],
            value=_number(selection["value"]),
            mode=selection["mode"],
            test={name: _convention(part) for name, part in content["test"].items()},
            fit_seconds=_number(content["seconds"]["fit"]),
            density=content.get("density"),
            steps=content.get("steps"),
            findings=content.get("findings") or {},
            proved=_proved(list((content.get("certificate") or {}).values())),
            val={name: _convention(part) for name, part in content["val"].items()},
            **same,
        )
    except KeyError as error:
        raise ValueError(f"{path}: results without {error}. Run it again (with test=true) or remove it.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: broken results file ({error}). Run it again or remove it.") from error


def unfinished(folder: str | Path) -> list[Path]:
    """Folders of runs that were started (Hydra left its `.hydra` there) and have no results.json."""
    started = (path.parent for path in sorted(Path(folder).rglob(".hydra")))
    return [path for path in started if not (path / "results.json").exists()]


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write to a temporary name and rename: a reader sees the whole file or none. A link stays one."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _proved(certificate: list[float | None]) -> bool | None:
    """A certificate says first what was found, then what that has to be at most."""
    return _number(certificate[0]) <= _number(certificate[1]) if len(certificate) > 1 else None


def _convention(part: dict) -> dict:
    measures = {name: _number(value) for name, value in part["measures"].items()}
    return {"text": part["text"], "lists": int(part["lists"]), "empty": int(part["empty"]), "measures": measures}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)  # strict JSON writes nan as null
