"""The results of a run: `results.json`, and `per_query.npz` for paired tests. Writer and reader of one schema."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout
from numpy.typing import NDArray

from torchrank.files import alone, peak_memory_mb, write_atomically

SCHEMA = 2
RESULTS, PER_QUERY = "results.json", "per_query.npz"
STOPPED = "stopped.json"  # of a trial without results: why it has none
COSTS = "costs.json"  # beside the results of a run: microseconds per document, bytes of the model
CHECKPOINT = "checkpoints/best.ckpt"  # below a run folder
FACTS = ("length", "relevant", "group")  # of test queries, in per_query.npz beside their ids and measures
FILES = ("train", "val", "test", "file")  # options of data that name files below its root
NAMES = ("root", *FILES, "subset", "source", "relevant", "candidates", "label", "query", "topics", "test_parts")
OF_SOURCE = tuple(f"data.{name}" for name in ("root", *FILES))  # overrides that name data, and are no settings
DEEPEST, LARGEST = 50, 1e100  # of a results.json: levels of nesting, and numbers that can be squared and summed
BROKEN = (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, OverflowError, MemoryError, RuntimeError,
          zipfile.BadZipFile, zlib.error)  # what numpy raises for a damaged or forged file  # fmt: skip
PACKAGES = ("torch", "pytorch-lightning", "torchmetrics", "hydra-core", "numpy")


def checkpoint_of(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that a path means: the file itself, or the best one of a run folder."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"checkpoint not found: {path}")
    if path.is_dir():
        found = path / CHECKPOINT
        if not found.is_file():
            raise FileNotFoundError(f"{path} is a folder without {CHECKPOINT}: name a run folder or a checkpoint")
        return found
    return path


# ---- names of measures -----------------------------------------------------------------------------------------------


def smaller_is_better(measure: str) -> bool:
    """Whether a measure, or what is logged under this name, is an error, a loss or a mean rank (ARP); ERR is none.

    >>> smaller_is_better("val/knn_error@3"), smaller_is_better("err@10")
    (True, False)
    """
    family = measure.rpartition("/")[2].partition("@")[0]
    return family.endswith(("error", "loss")) or family in ("arp", "average_relevance_position")


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


# ---- which data ------------------------------------------------------------------------------------------------------


def source_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """What names the data in its options: its folder or files, as absolute paths, and its part of a collection.

    Runs with different sources are never in one table. A data folder that was moved or copied is another source. The
    folder of a fold stands for that of every fold.

    >>> source_of({"name": "files", "root": "/shop/Fold2", "train": "train.txt", "test": None, "fold": 2})
    {'train': '/shop/Fold*/train.txt'}
    >>> source_of({"name": "points", "source": "wine", "root": None})
    {'source': 'wine'}
    """
    named = {key: data[key] for key in NAMES if data.get(key) is not None}
    root = os.path.realpath(named.pop("root", "."))
    files = {key: _below(root, named[key], data.get("fold")) for key in FILES if key in named}
    folder = {"root": root} if data.get("root") is not None and not files.keys() & {"train", "file"} else {}
    return folder | named | files


def _below(root: str, name: Any, fold: Any) -> Any:
    if not isinstance(name, str):
        return [_below(root, each, fold) for each in name] if isinstance(name, list) else name
    path = os.path.realpath(os.path.join(root, name))
    return re.sub(rf"(?i)(?<=[/\\]fold){re.escape(str(fold))}(?=[/\\])", "*", path)


def tell_apart(runs: Sequence[Run]) -> list[Run]:
    """The same runs; data of one title from several sources get titles that say where they are from."""
    sources: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        sources.setdefault(run.data, {})[json.dumps(run.source, sort_keys=True)] = run.source
    return [run if len(sources[run.data]) == 1 else replace(run, data=_title(run, sources[run.data])) for run in runs]


def _title(run: Run, sources: Mapping[str, Mapping[str, Any]]) -> str:
    keys = [key for key in NAMES if len({json.dumps(source.get(key)) for source in sources.values()}) > 1]
    return f"{run.data} ({', '.join(f'{key} {run.source.get(key)}' for key in keys)})"


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
        "source": source_of(config.get("data") or {}),
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
        same = results["schema"] == SCHEMA and _placed(results["config"], results.get("source")) == _placed(config)
    except (*BROKEN, RecursionError):  # no file, or a damaged one
        return None
    return results if whole and same else None


def _placed(config: dict[str, Any], source: dict[str, Any] | None = None) -> dict[str, Any]:
    """A configuration in which the data are named by absolute paths: `root=data` means another folder elsewhere."""
    data = config.get("data")
    if not isinstance(data, dict):
        return config
    return config | {"data": without_names(data) | {"source": source_of(data) if source is None else source}}


def without_names(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in NAMES}


def forget_results(folder: Path) -> None:
    """Remove results of an earlier run from the folder, so that they cannot be mistaken for those of a failed one."""
    for name in (RESULTS, PER_QUERY, STOPPED, COSTS):
        (folder / name).unlink(missing_ok=True)


def forget_start(folder: Path) -> None:
    """Remove the folder of a run, or of a sweep, that failed before it wrote anything of use; its parents, if empty.

    A folder with any other file stays as it is, and so does the current folder, and one that another run has locked.
    """
    folder, here = folder.absolute(), Path.cwd()
    if folder == here or folder in here.parents or folder.is_symlink() or not folder.is_dir():
        return
    with ExitStack() as locks, suppress(OSError):  # a Timeout is one: another run has started here
        for lock in {folder / ".lock", *folder.rglob(".lock")}:
            locks.enter_context(alone(lock, wait=False))
        if all(_is_of_start(path) for path in folder.rglob("*") if not path.is_dir()):
            shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
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
def alone_in(folder: Path, option: str = "hydra.run.dir (hydra.sweep.dir)") -> Iterator[None]:
    """Refuse a folder that another run is writing to; `option` names another one. On a file system without locks no run
    is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as lock:
        try:
            lock.enter_context(alone(folder / ".lock", wait=False))
        except Timeout:
            raise FileExistsError(
                f"Another run is writing to {folder}. Wait for it to finish, or set {option}."
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
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # the same; empty for runs of older versions
    peak_memory_mb: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    num_lists: dict[str, int] = field(default_factory=dict)  # of each split
    source: dict[str, Any] = field(default_factory=dict)  # what names the data, see `source_of`

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
        except BROKEN as error:
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
        except BROKEN as error:
            raise ValueError(f"{path}: cannot read the queries ({error}). Run it again.") from error
        for name, values in found.items():
            self._check_ids(found["query"], values, name)
            if name in FACTS and (values.dtype.kind not in "iufb" or np.isinf(values).any()):
                raise ValueError(f"{path}: {name} holds {values.dtype} that are no counts. Run it again.")
        return found

    def _check_ids(self, ids: NDArray[Any], values: NDArray[Any], key: str) -> None:
        if ids.ndim != 1 or ids.shape != values.shape or len(np.unique(ids)) != len(ids):
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
        texts = (json.dumps(each, sort_keys=True) for each in (run.settings, run.source))
        key = (run.name, run.data, run.fold, run.seed, *texts)
        if key in seen:
            raise ValueError(f"{seen[key].folder} and {run.folder} hold the same run: remove one of them")
        seen[key] = run
    return runs


def read_run(path: Path, *, tested: bool = True) -> Run:
    """A results.json as a Run; any problem with it is a ValueError that names the file."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file that can be read. Remove it.")
    try:
        return _run(path.parent, _content(path.read_text(encoding="utf-8")), tested)
    except KeyError as error:
        raise ValueError(f"{path} has no {error}. Run it again (with test=true) or remove it.") from error
    except (*BROKEN, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Run it again or remove it.") from error


def _content(text: str) -> dict[str, Any]:
    """The JSON object of a text, if it is one of ours."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__}, not the results of a run")
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']}, but this version reads {SCHEMA}")
    level: list[Any] = [content]
    for _ in range(DEEPEST):
        parts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for part in parts for value in part]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return content


def _run(folder: Path, content: dict[str, Any], tested: bool) -> Run:
    if not tested and "test" not in content and content["per_query"] is None:
        content |= {"test": {}}
    selection, certificate = _typed(content, "selection", dict), _typed(content, "certificate", dict, None)
    config = content.get("config") or {}
    source = content["source"] if "source" in content else source_of(_dict(_dict(config).get("data") or {}))
    run = Run(
        folder=folder,
        name=_typed(content, "name", str),
        ranker=_typed(content, "ranker", str),
        data=_typed(content, "data", str),
        fold=_typed(content, "fold", int, str, None),
        seed=_typed(content, "seed", int),
        settings={key: value for key, value in _typed(content, "settings", dict).items() if key not in OF_SOURCE},
        measure=_typed(selection, "measure", str),
        value=_number(selection["value"]),
        mode=_typed(selection, "mode", str),
        val={name: _convention(part) for name, part in _typed(content, "val", dict).items()},
        test={name: _convention(part) for name, part in _typed(content, "test", dict).items()},
        per_query=_typed(content, "per_query", str, None) or "",
        fit_seconds=_number(_typed(content, "seconds", dict)["fit"]),
        density=_number_or_none(content["density"]),
        steps=_typed(content, "steps", int, None),
        config=_dict(config),
        seconds={name: _number(value) for name, value in content["seconds"].items()},
        cpu_seconds={name: _number(value) for name, value in _dict(content.get("cpu_seconds") or {}).items()},
        peak_memory_mb=_number_or_none(content.get("peak_memory_mb")),
        versions=_dict(content.get("versions") or {}),
        num_lists=_dict(content.get("num_lists") or {}),
        findings=_typed(content, "findings", dict),
        proved=None if certificate is None else bool(certificate["proved"]),
        source=_dict(source),
    )
    _check_run(run, tested)
    return run


def _check_run(run: Run, tested: bool) -> None:
    if run.mode not in ("max", "min"):
        raise ValueError(f"mode is {run.mode!r}, not max or min")
    if run.per_query != Path(run.per_query).name:
        raise ValueError(f"per_query is {run.per_query!r}, not the name of a file beside it")
    if not (run.test if tested else run.measured):
        raise ValueError("it has no measures")


def _typed(content: dict[str, Any], key: str, *kinds: type | None) -> Any:
    """The value of a key, of one of these types."""
    value = _dict(content)[key]
    if not any(value is None if kind is None else type(value) is kind for kind in kinds):
        names = " or ".join("null" if kind is None else kind.__name__ for kind in kinds)
        raise TypeError(f"{key} must be of type {names}, got {type(value).__name__}")
    return value


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got a {type(value).__name__}")
    return value


def unfinished(folder: str | Path) -> list[Path]:
    """Folders of runs that were started (they have a `.hydra`) but have no results.json."""
    started = (path.parent for path in sorted(Path(folder).rglob(".hydra")))
    return [path for path in started if not (path / RESULTS).exists()]


def why_unfinished(folder: Path) -> str:
    """Why a trial of a study has no results, in a few words after a colon; empty, if it is not known."""
    try:
        told = json.loads((folder / STOPPED).read_text(encoding="utf-8"))
        return f": {told['state']}{', ' if told['reason'] else ''}{told['reason']}"
    except (*BROKEN, RecursionError):
        return ""


def _convention(part: Any) -> dict[str, Any]:
    measures = {name: _number(value) for name, value in _typed(part, "measures", dict).items()}
    if not measures:
        raise ValueError("it has no measures")
    counts = {name: int(_number(_typed(part, name, int))) for name in ("lists", "empty")}
    return {"text": _typed(part, "text", str), **counts, "measures": measures}


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    """A number of a results.json, in which nan is null."""
    if value is None:
        return math.nan
    if type(value) not in (int, float) or abs(value) > LARGEST:
        raise ValueError(f"expected a number, got {str(value)[:40]}")
    return float(value)
