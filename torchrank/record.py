"""The results of a run: `results.json`, and `per_query.npz` for paired tests. Writer and reader of one schema."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout
from numpy.typing import NDArray

from torchrank.files import alone, peak_memory_mb, write_atomically

SCHEMA = 2
RESULTS, PER_QUERY = "results.json", "per_query.npz"
FACTS = ("length", "relevant", "group")  # of test queries, in per_query.npz beside their ids and measures
PACKAGES = ("torch", "pytorch-lightning", "torchmetrics", "hydra-core", "numpy")


# ---- names of measures -----------------------------------------------------------------------------------------------


def smaller_is_better(measure: str) -> bool:
    """Whether a measure, or what is logged under this name, is an error or a loss; ERR is neither.

    >>> smaller_is_better("val/knn_error@3"), smaller_is_better("err@10")
    (True, False)
    """
    return measure.rpartition("/")[2].partition("@")[0].endswith(("error", "loss"))


def monitor_name(split: str, measure: str, convention: str, conventions: Sequence[str]) -> str:
    """The name under which a measure is logged: the first convention is not named.

    >>> conventions = ["default", "letor"]
    >>> [monitor_name("val", "map", convention, conventions) for convention in conventions]
    ['val/map', 'val/letor/map']
    """
    return f"{split}/{measure}" if convention == conventions[0] else f"{split}/{convention}/{measure}"


def parse_monitor(name: str, conventions: Sequence[str]) -> tuple[str, str, str]:
    """Split, convention and measure of a logged name: the inverse of `monitor_name`.

    >>> parse_monitor("val/letor/ndcg@10", ["default", "letor"])
    ('val', 'letor', 'ndcg@10')
    """
    split, *convention, measure = name.split("/")
    return split, convention[0] if convention else conventions[0], measure


# ---- writing --------------------------------------------------------------------------------------------------------


def record(
    name: str,
    config: dict[str, Any],
    settings: dict[str, Any],
    ranker: Any,
    data: Any,
    evaluation: Any,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """What `results.json` holds of a finished run."""
    import torch

    import torchrank

    measured = evaluation.measured
    _, convention, measure = parse_monitor(config["monitor"], evaluation.conventions)
    certificate = ranker.certificate
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
        "versions": {"torchrank": torchrank.__version__, **{package: version(package) for package in PACKAGES}},
        "git": git_commit(),
        "selection": {
            "measure": config["monitor"],
            "value": measured["val"][convention]["measures"][measure],
            "mode": config["mode"],
        },
        "certificate": None if certificate is None else _certificate(certificate),
        "findings": ranker.findings,
        "density": ranker.density(),
        "steps": ranker.trainer.global_step,  # of the optimizer, or rounds of a ranker that learns by rounds
        "num_lists": {split: len(lists) for split, lists in data.sets.items()},
        **{split: {name: without(part, "per_query") for name, part in of.items()} for split, of in measured.items()},
        "per_query": PER_QUERY if "test" in measured else None,
        "seconds": seconds,
        "peak_memory_mb": peak_memory_mb(),
        "peak_gpu_memory_mb": torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0,
    }


def _certificate(certificate: Any) -> dict[str, Any]:
    known = {**certificate._asdict(), "bounds": dict(certificate.bounds)}
    return {**known, "proved": certificate.proved, "text": str(certificate)}


def write_results(
    folder: Path, results: dict[str, Any], measured: dict[str, Any], facts: Mapping[str, NDArray[Any]]
) -> None:
    """Write the values per query first, so that a `results.json` always has them.

    Args:
        folder: of the run.
        results: what `record` returned.
        measured: what the evaluation measured.
        facts: arrays (Q,) about the test queries: query, length, relevant, and group where the ranker has groups.
    """
    if results["per_query"] is not None:
        columns = dict(facts)
        for name, part in measured["test"].items():
            columns |= {f"{name}/{measure}": values.numpy() for measure, values in part["per_query"].items()}
        write_atomically(folder / PER_QUERY, lambda file: np.savez(file, **columns))  # type: ignore[arg-type]
    write_atomically(folder / RESULTS, lambda file: file.write(json.dumps(results, indent=1).encode()))


def finished(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The results in `folder` if they belong to this configuration: a sweep that is started again skips such runs."""
    try:
        results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        whole = results["per_query"] is None or (folder / results["per_query"]).exists()
        same = results["schema"] == SCHEMA and results["config"] == config
    except (OSError, ValueError, KeyError, TypeError):  # no file, or a damaged one
        return None
    return results if whole and same else None


def forget_results(folder: Path) -> None:
    """Remove results of an earlier run from the folder, so that they cannot be mistaken for those of a failed one."""
    for name in (RESULTS, PER_QUERY):
        (folder / name).unlink(missing_ok=True)


def forget_start(folder: Path) -> None:
    """Remove the folder of a run, or of a sweep, that failed before it wrote anything of use; its parents, if empty.

    A folder with any other file stays as it is, and so does the current folder.
    """
    folder, here = folder.absolute(), Path.cwd()
    if folder == here or folder in here.parents or folder.is_symlink() or not folder.is_dir():
        return
    if all(_is_of_start(path) for path in folder.rglob("*") if not path.is_dir()):
        shutil.rmtree(folder, ignore_errors=True)
        for parent in folder.parents:
            if here not in parent.parents or any(parent.iterdir()):
                break
            parent.rmdir()


def _is_of_start(path: Path) -> bool:
    """Whether a file says nothing that the error did not say: the configuration, an empty log."""
    of_hydra = path.parent.name == ".hydra" and path.suffix == ".yaml"
    of_logger = path.parent.name in ("log", "tensorboard") and path.name.startswith(("hparams.yaml", "events.out."))
    return of_hydra or of_logger or path.name in ("train.log", "multirun.yaml", ".lock")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder that another run is writing to. On a file system without locks no run is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as lock:
        try:
            lock.enter_context(alone(folder / ".lock", wait=False))
        except Timeout:
            raise FileExistsError(
                f"Another run is writing to {folder}. Wait for it to finish, or set hydra.run.dir (hydra.sweep.dir)."
            ) from None
        yield


def without(part: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != key}


def git_commit() -> str | None:
    """The commit of the checkout that torchrank runs from; None outside of a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A finished run: what was fitted, how it was selected, what it reached. Values per query are read on demand."""

    folder: Path
    name: str  # the method
    ranker: str
    data: str
    fold: int | str | None
    seed: int
    settings: dict[str, Any]  # the overrides in which this run differs from others of the method
    measure: str  # of selection, such as val/ndcg@10
    value: float
    mode: str  # max or min
    test: dict[str, dict[str, Any]]  # convention -> text, lists, empty, measures; empty if the run was not tested
    fit_seconds: float
    per_query: str  # file name below the folder; empty if the run was not tested
    val: dict[str, dict[str, Any]] = field(default_factory=dict)  # as test
    density: float | None = None  # share of non-zero weights, if the ranker counts them
    proved: bool | None = None  # whether the fit reached its certificate; None if it has none
    findings: dict[str, Any] = field(default_factory=dict)  # what else the fit reported
    steps: int | None = None  # of the optimizer, or rounds of a ranker that learns by rounds
    config: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # data, fit, test
    peak_memory_mb: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    num_lists: dict[str, int] = field(default_factory=dict)  # of each split

    @property
    def split(self) -> str:
        """The lists that this run reports: test, or val if it was not tested."""
        return "test" if self.test else "val"

    @property
    def measured(self) -> dict[str, dict[str, Any]]:
        """What was measured on these lists, by convention."""
        return self.test or self.val

    def queries(self, convention: str, measure: str) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
        """Query ids `(Q,)` and the test measure of each query `(Q,)`; nan: left out."""
        if not self.per_query:
            raise ValueError(f"{self.folder} has no values per query, since it was not tested: run it with test lists.")
        path, key = self.folder / self.per_query, f"{convention}/{measure}"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                ids, values = arrays["query"], arrays[key].astype(np.float64)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: cannot read the values 'query' and '{key}' ({error}). Run it again.") from error
        self._check_ids(ids, values, key)
        return ids, values

    def facts(self) -> dict[str, NDArray[Any]]:
        """What is known about each test query, in the order of `queries`: its id as "query", "length" and "relevant"
        `(Q,)`, and "group" where the ranker has groups. Of runs of older versions only the ids are known."""
        path = self.folder / self.per_query
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = {"query": arrays["query"], **{name: arrays[name] for name in FACTS if name in arrays}}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: cannot read the queries ({error}). Run it again.") from error
        for name, values in found.items():
            self._check_ids(found["query"], values, name)
        return found

    def _check_ids(self, ids: NDArray[Any], values: NDArray[Any], key: str) -> None:
        if ids.shape != values.shape or len(np.unique(ids)) != len(ids):
            found = f"{len(np.unique(ids))} different query ids of {ids.shape}, {values.shape} values of '{key}'"
            path = self.folder / self.per_query
            raise ValueError(f"{path}: every query needs one id and one value, got {found}. Run it again.")


def read_runs(folder: str | Path, *, tested: bool = True) -> list[Run]:
    """All finished runs (those with a results.json) below the folder, sorted by path.

    With `tested`, a run without a test part is refused; otherwise its `test` and `per_query` are empty.

    >>> read_runs("no/such/folder")
    Traceback (most recent call last):
    ...
    ValueError: folder not found: no/such/folder
    """
    if not Path(folder).is_dir():
        raise ValueError(f"folder not found: {folder}")
    return distinct([read_run(path, tested=tested) for path in sorted(Path(folder).rglob(RESULTS))])


def distinct(runs: list[Run]) -> list[Run]:
    """The same runs; two that cannot be told apart are refused."""
    seen: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        key = (run.name, run.data, run.fold, run.seed, json.dumps(run.settings, sort_keys=True))
        if key in seen:
            raise ValueError(f"{seen[key].folder} and {run.folder} hold the same run: remove one of them")
        seen[key] = run
    return runs


def read_run(path: Path, *, tested: bool = True) -> Run:
    """A results.json as a Run; any problem with it is a ValueError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not tested and "test" not in content and content["per_query"] is None:
            content |= {"test": {}, "per_query": ""}
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, but this version reads {SCHEMA}")
        selection, certificate = content["selection"], content["certificate"]
        same = {key: content[key] for key in ("name", "ranker", "data", "fold", "seed", "settings", "per_query")}
        return Run(
            folder=path.parent,
            measure=selection["measure"],
            value=_number(selection["value"]),
            mode=selection["mode"],
            val={name: _convention(part) for name, part in content["val"].items()},
            test={name: _convention(part) for name, part in content["test"].items()},
            fit_seconds=_number(content["seconds"]["fit"]),
            density=content["density"],
            steps=content["steps"],
            config=content.get("config") or {},
            seconds={name: _number(value) for name, value in content["seconds"].items()},
            peak_memory_mb=content.get("peak_memory_mb"),
            versions=content.get("versions") or {},
            num_lists=content.get("num_lists") or {},
            findings=content["findings"],
            proved=None if certificate is None else bool(certificate["proved"]),
            **same,
        )
    except KeyError as error:
        raise ValueError(f"{path} has no {error}. Run it again (with test=true) or remove it.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Run it again or remove it.") from error


def unfinished(folder: str | Path) -> list[Path]:
    """Folders of runs that were started (they have a `.hydra`) but have no results.json."""
    started = (path.parent for path in sorted(Path(folder).rglob(".hydra")))
    return [path for path in started if not (path / RESULTS).exists()]


def _convention(part: dict[str, Any]) -> dict[str, Any]:
    measures = {name: _number(value) for name, value in part["measures"].items()}
    return {"text": part["text"], "lists": int(part["lists"]), "empty": int(part["empty"]), "measures": measures}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)  # strict JSON writes nan as null
