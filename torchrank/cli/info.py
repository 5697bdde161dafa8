"""`torchrank info`: what a data file, a checkpoint or a run folder is; without a path, what this installation has."""

from __future__ import annotations

import argparse
import math
import os
import platform
import shlex
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torchrank.cli.convert import add_source, open_options
from torchrank.cli.shared import add_json, print_json

EXAMPLES = """
torchrank info                                   # versions, devices, extras
torchrank info train.txt                         # queries, documents, labels, features
torchrank info clicks.csv --label grade --query qid --json
torchrank info runs/single/files/lgmml/2026-01-31_12-00-00
torchrank info best.ckpt
torchrank info corpus.npy                        # how many vectors, of how many numbers
torchrank info adapter                           # a folder that `torchrank export` or Adapter.save has written
"""
EXTRAS = {  # those of pyproject.toml that a command or a config asks for
    "gbdt": ("lightgbm",),
    "xgboost": ("xgboost",),
    "zstd": ("zstandard",),
    "points": ("scikit-learn",),
    "peers": ("metric-learn",),
    "plots": ("matplotlib",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "tune": ("optuna",),
    "text": ("sentence-transformers",),
    "faiss": ("faiss-cpu",),
    "loggers": ("tensorboard", "wandb"),
}
SHOWN = 10  # constant features that are named
BLOCK = 10_000  # vectors that are read at a time


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH", nargs="?", help="a data file, vectors, cache, checkpoint, adapter or run"
    )
    add_source(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    found = installation() if options.source is None else look_at(options)
    if options.json:
        print_json(found)
        return
    for line in lines(found):
        print(line)


def look_at(options: argparse.Namespace) -> dict[str, Any]:
    """What is at the path."""
    path = Path(options.source)
    if not path.exists():
        raise FileNotFoundError(f"not found: {path}")
    if path.is_dir() and not (path / "manifest.json").is_file() and not list(path.glob("*/manifest.json")):
        return about_folder(path)
    if path.suffix in (".ckpt", ".pt"):
        return about_checkpoint(path)
    if path.suffix in (".npy", ".safetensors"):
        return about_vectors(path)
    return about_data(options)


def about_data(options: argparse.Namespace) -> dict[str, Any]:
    """Counts, labels, lengths and features of a data file."""
    from torchrank.data.formats import format_of
    from torchrank.data.formats.statistics import describe

    missing = math.nan if options.missing is None else options.missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is counted below
        source = open_options(options, missing=missing)
        kind = options.from_ or format_of(options.source, reading=True)
        return {"path": options.source, "kind": f"data ({kind})", **describe(source)}


def about_checkpoint(path: Path) -> dict[str, Any]:
    """The ranker in a checkpoint. Nothing in the file is executed."""
    from torchrank.rankers.core.checkpoints import load, read_checkpoint

    content = read_checkpoint(path)
    options = dict(content.get("hyper_parameters", {}))
    found = {
        "path": str(path),
        "kind": "checkpoint",
        "ranker": content["ranker"],
        "features": options.pop("num_features", None),
        "transform": options.get("transform"),
        "epoch": content.get("epoch"),
        "step": content.get("global_step"),
        "options": options,
    }
    try:
        ranker = load(path)
    except (ValueError, ImportError, RuntimeError) as error:  # a package or a class that is not here
        return found | {"note": f"it cannot be loaded here: {str(error).splitlines()[0]}"}
    names = getattr(ranker, "feature_names", None)
    certificate = None if ranker.certificate is None else str(ranker.certificate)
    return found | {
        "parameters": sum(each.numel() for each in ranker.parameters()),
        "feature_names": None if names is None else list(names),
        "certificate": certificate,
        "findings": dict(ranker.findings),
    }


def about_vectors(path: Path) -> dict[str, Any]:
    """How many vectors a file holds, and of what kind."""
    import torch

    from torchrank.data.sources.embeddings.files import map_vectors

    vectors = map_vectors(path)
    lengths = torch.cat([rows.double().norm(dim=1) for rows in vectors.split(BLOCK)])
    return {
        "path": str(path),
        "kind": "vectors",
        "vectors": len(vectors),
        "numbers": vectors.shape[1],
        "type": str(vectors.dtype).removeprefix("torch."),
        "norms": {"min": lengths.min().item(), "mean": lengths.mean().item(), "max": lengths.max().item()},
    }


def about_folder(path: Path) -> dict[str, Any]:
    """The results of a run folder, or the runs below a folder."""
    from torchrank.record import RESULTS, read_run, read_runs, unfinished
    from torchrank.screen import override

    if (path / RESULTS).is_file():
        return {"path": str(path), "kind": "run", **_brief(read_run(path / RESULTS, tested=False))}
    if (path / "Fold1").is_dir():
        folds = sorted(each.name for each in path.glob("Fold*"))
        return {
            "path": str(path),
            "kind": "folds",
            "folds": folds,
            "use": f"data=folds {override('data.root', path)} data.fold=1",
        }
    if (path / "adapter.json").is_file():
        return about_adapter(path)
    if any((path / f"corpus{suffix}").is_file() for suffix in (".npy", ".safetensors", ".jsonl")):
        return about_embeddings(path)
    if not any(path.rglob(RESULTS)):
        started = f"; {len(unfinished(path))} runs were started" if unfinished(path) else ""
        raise ValueError(f"{path} holds no {RESULTS}, no cache and no Fold1: neither runs nor data{started}")
    runs = read_runs(path, tested=False)
    values = {str(run.folder.relative_to(path)): f"{run.name}, {run.measure} {run.value:.4f}" for run in runs}
    return {"path": str(path), "kind": "runs", "runs": values, "use": f"torchrank select {shlex.quote(str(path))}"}


def about_embeddings(path: Path) -> dict[str, Any]:
    """The vectors of a folder in BEIR's layout, and what reads or makes them."""
    from torchrank.data.sources.embeddings.files import SUFFIXES, map_vectors
    from torchrank.screen import override

    sides: dict[str, str | None] = {}
    for name in ("corpus", "queries"):
        file = next((file for suffix in SUFFIXES if (file := path / f"{name}{suffix}").is_file()), None)
        shape = None if file is None else map_vectors(file).shape
        sides[name] = None if shape is None else f"{shape[0]} vectors of {shape[1]} numbers"
    use = f"torchrank train model=adapter data=embeddings {override('data.root', path)}"
    use = use if all(sides.values()) else f"torchrank embed {shlex.quote(str(path))} --model MODEL"
    return {"path": str(path), "kind": "embeddings", **sides, "use": use}


def about_adapter(path: Path) -> dict[str, Any]:
    """What a saved adapter maps, and how."""
    from torchrank.export.adapters.folder import load_adapter

    adapter = load_adapter(path)
    facts = {name: getattr(adapter, name) for name in ("side", "inputs", "outputs", "normalise", "similarity")}
    side = "" if adapter.side != "both" else " --side query"
    use = f"torchrank apply {shlex.quote(str(path))} vectors.npy{side} --out images.npy"
    return {"path": str(path), "kind": "adapter", **facts, "use": use}


def _brief(run: Any) -> dict[str, Any]:
    checkpoints = sorted(each.name for each in (run.folder / "checkpoints").glob("*.ckpt"))
    test = {name: part["measures"] for name, part in run.test.items()}
    return {
        "method": run.name,
        "ranker": run.ranker,
        "data": run.data,
        "fold": run.fold,
        "seed": run.seed,
        "settings": run.settings,
        "queries": run.num_lists,
        "selected_by": {run.measure: run.value},
        "test": test or "not tested",
        "proved": run.proved,
        "steps": run.steps,
        "seconds": run.seconds,
        "checkpoints": checkpoints,
    }


def installation() -> dict[str, Any]:
    """Versions, devices and extras."""
    import torch

    from torchrank import __version__
    from torchrank.record import PACKAGES

    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    extras = {name: {package: _version(package) for package in packages} for name, packages in EXTRAS.items()}
    return {
        "torchrank": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in (*PACKAGES, "polars", "scipy")},
        "devices": {"cpu": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads", "cuda": devices or None},
        "extras": {
            name: found if all(found.values()) else f"missing: pip install 'torchrank-ltr[{name}]'"
            for name, found in extras.items()
        },
    }


def _version(package: str) -> str | None:
    for name in (package, f"{package}-cpu"):  # under which XGBoost is distributed, too
        with suppress(PackageNotFoundError):
            return version(name)
    return None


# ---- printing --------------------------------------------------------------------------------------------------------


def lines(found: dict[str, Any]) -> list[str]:
    """The facts, one per line, with those of a group indented below it."""
    width = max(len(key) for key in found) + 2
    text: list[str] = []
    for key, value in found.items():
        name = key.replace("_", " ")
        if key == "ranges":
            text += _ranges(value)
        elif key == "constant":
            text.append(f"{'constant':{width}}{_listed(value)}")
        elif key == "zeros":
            text.append(f"{'zeros':{width}}{value:.1%}")
        elif isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
            text.append(name)
            text += [f"  {each:{width}}{_told(item)}" for each, item in value.items()]
        else:
            text.append(f"{name:{width}}{_told(value)}")
    return text


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_told(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value)) or "none"
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _listed(names: list[str]) -> str:
    more = f", ... ({len(names)})" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "none"


def _ranges(ranges: dict[str, list[float]]) -> list[str]:
    """The range of each feature, as many as fit a screen."""
    width = max(map(len, ranges)) + 2
    shown = [f"  {name:{width}}{low:.4g} .. {high:.4g}" for name, (low, high) in list(ranges.items())[: 2 * SHOWN]]
    more = [f"  ... {len(ranges) - len(shown)} more (--json has all)"] if len(ranges) > len(shown) else []
    return ["ranges", *shown, *more]
