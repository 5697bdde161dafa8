"""Hostile files: whatever a file holds, reading it executes nothing. A canary file would tell."""

import io
import json
import logging
import os
import pickle
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.attack import children, inputs
from tests.attack.tally import Tally
from torchrank import MetricEstimator, RankingEstimator, load, read_letor
from torchrank.data.cache import open_folder
from torchrank.data.formats.arrays import read_npz
from torchrank.data.sources.point_tables import read_points
from torchrank.data.sources.retrieval import load_retrieval
from torchrank.data.sources.tables import read_table
from torchrank.rankers.core.checkpoint_files import WholeCheckpoints
from torchrank.rankers.core.checkpoints import read_checkpoint
from torchrank.rankers.lgmml.compiled import CompiledScorer
from torchrank.record import read_run, read_runs

MODULE = "hostile_module"  # lies in the current folder, where an import would find it


class Bomb:
    """Writes the canary when it is unpickled."""

    def __init__(self, canary: Path, way: str):
        self.canary, self.way = str(canary), way

    def __reduce__(self) -> Any:
        text = f"open({self.canary!r}, 'w').close()"
        return {
            "os.system": (os.system, (f"touch '{self.canary}'",)),
            "exec": (exec, (text,)),
            "eval": (eval, (text,)),
            "open": (open, (self.canary, "w")),
            "mkdir": (os.mkdir, (self.canary,)),
        }[self.way]


WAYS = ("os.system", "exec", "eval", "open", "mkdir")


# ---- hostile files ---------------------------------------------------------------------------------------------------


def forged(checkpoint: bytes, change: Callable[[Any], Any]) -> bytes:
    """A checkpoint with other content, written by torch: whole, and with right checksums."""
    content = change(torch.load(io.BytesIO(checkpoint), weights_only=True))
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def with_bomb(place: tuple[str, ...], bomb: Bomb, content: Any) -> Any:
    """The content with a bomb at a place."""
    inner = content
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = bomb
    return content


PLACES = (
    ("ranker",), ("format",), ("hyper_parameters", "l2"), ("hyper_parameters", "scorer"), ("state_dict", "weight"),
    ("state_dict", "_extra_state"), ("callbacks", "ModelCheckpoint"), ("optimizer_states", "0"), ("loops", "fit_loop"),
    ("random_state", "python"), ("estimator", "params"), ("datamodule_hyper_parameters",), ("anything",),
)  # fmt: skip
NAMED = (  # names in a file that nobody may import or call
    {"scorer": f"{MODULE}.Net"},
    {"loss": f"{MODULE}.loss"},
    {"scorer": "os.system", "scorer_options": {"command": "touch canary"}},
    {"optimizer": {"name": f"{MODULE}.Optimizer"}},
    {"optimizer": {"_target_": "os.system", "command": "touch canary"}},
    {"scheduler": {"_target_": "os.system", "command": "touch canary"}},
    {"transform": {"_target_": "os.system", "command": "touch canary"}},
    {"transform": {"name": f"{MODULE}.Transform"}},
    {"_target_": "os.system", "command": "touch canary"},
    {"_instantiator": "os.system"},
    {"options": {"objective": f"{MODULE}.objective"}},
)


def checkpoints(bomb: Bomb) -> list[bytes]:
    own = inputs.checkpoint_file("mlp_ranknet")
    found = [forged(own, partial(with_bomb, place, bomb)) for place in PLACES]
    found += [forged(own, lambda content, new=new: content | {"hyper_parameters": content["hyper_parameters"] | new})
              for new in NAMED]  # fmt: skip
    found += [forged(own, lambda content, name=name: content | {"ranker": name}) for name in
              (f"{MODULE}.Net", "os.system", "__import__", "errors", "functional")]  # fmt: skip
    legacy = io.BytesIO()
    torch.save(bomb, legacy, _use_new_zipfile_serialization=False)
    return [*found, legacy.getvalue(), pickle.dumps(bomb), pickle.dumps({"ranker": "ListNet", "state_dict": bomb})]


def arrays(bomb: Bomb) -> list[bytes]:
    """npz files with objects in one of their arrays, with a pickle in place of one, and a pickle as a whole."""
    good = {"x": np.ones((2, 2)), "y": np.arange(2), "labels": np.ones(2), "offsets": np.array([0, 2]),
            "corpus": np.eye(2), "queries": np.eye(2), "relevant": np.array([0, 1]),
            "relevant_offsets": np.array([0, 1, 2])}  # fmt: skip
    found = [pickle.dumps(bomb)]
    for name in (*good, "query_ids", "document_ids", "feature_names", "split"):
        file = io.BytesIO()
        np.savez(file, **{**good, name: np.array([bomb, bomb], dtype=object)})
        found.append(file.getvalue())
        file = io.BytesIO()
        np.savez(file, **good)
        with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr(f"{name}.npy", pickle.dumps(bomb))
            archive.writestr(name, pickle.dumps(bomb))
        found.append(file.getvalue())
    return found


def caches(bomb: Bomb) -> list[dict[str, bytes]]:
    """Caches, one file of which is a pickle or an array of objects; the manifest tells its new checksum."""
    own = inputs.cache_files()
    file = io.BytesIO()
    np.save(file, np.array([bomb], dtype=object), allow_pickle=True)
    found = []
    for name in own:
        for content in (file.getvalue(), pickle.dumps(bomb)):
            found.append(_sealed({**own, name: content}) if name != "manifest.json" else {**own, name: content})
    return found


def _sealed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The manifest of a forger, who knows how checksums are made."""
    import zlib

    from torchrank.data.cache import _checksum

    manifest = json.loads(files["manifest.json"])
    manifest.pop("checksum", None)
    for name, known in manifest["set"]["files"].items():
        known["checksum"] = zlib.crc32(files[f"{name}.npy"])
        if files[f"{name}.npy"].startswith(b"\x93NUMPY"):
            known |= {"dtype": "object", "shape": [1]} if b"'O'" in files[f"{name}.npy"][:128] else {}
    content = json.dumps({**manifest, "checksum": _checksum(manifest)}).encode()
    return {**files, "manifest.json": content}


def mats(bomb: Bomb) -> list[bytes]:
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {"fea": np.array([[pickle.dumps(bomb).decode("latin1")]], dtype=object), "gnd": np.ones((1, 1))})
    return [file.getvalue(), pickle.dumps(bomb), arrays(bomb)[1]]


def results(bomb: Bomb) -> list[bytes]:
    """results.json whose config names what Hydra would call."""
    content = json.loads(inputs.results_text())
    call = {"_target_": "os.system", "command": f"touch '{bomb.canary}'"}
    places: list[dict[str, Any]] = [{"config": call}, {"config": {"model": call, "data": call}}, {"settings": call},
              {"findings": call}, {"per_query": "hostile.npz"}, {"per_query": "../hostile.npz"}]  # fmt: skip
    return [json.dumps({**content, **place}).encode() for place in places] + [pickle.dumps(bomb)]


# ---- who reads them --------------------------------------------------------------------------------------------------


def _whole(path: Path) -> None:
    WholeCheckpoints().load_checkpoint(path)


def _fit(path: Path) -> None:
    """A fit that is resumed from the file."""
    from pytorch_lightning import Trainer

    from tests.laws.rankers import CASES, sets
    from torchrank import RankingDataModule

    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing", "use_distributed_sampler")
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, num_sanity_val_steps=0, **dict.fromkeys(off, False))
    ranker = CASES["mlp_ranknet"].make()
    trainer.fit(ranker, datamodule=RankingDataModule.from_sets(**sets("lists")), ckpt_path=path, weights_only=True)


def _select(path: Path) -> None:
    """`torchrank select` and all that a run gives."""
    for run in (read_run(path), *read_runs(path.parent)):
        run.facts()
        run.queries("default", "ndcg@10")


def _command(*words: str) -> Callable[[Path], None]:
    """A command of torchrank, in this process."""

    def call(path: Path) -> None:
        from torchrank.cli import main

        main([word.format(path=path, folder=path.parent) for word in words])

    return call


SCORED = "scored.txt"
READERS: dict[str, tuple[str, str, list[Callable[[Path], Any]]]] = {
    "checkpoints": ("checkpoints", "a.ckpt", [
        load, read_checkpoint, _whole, RankingEstimator.load, MetricEstimator.load, CompiledScorer.load, _fit,
        _command("info", "{path}"), _command("score", "{path}", "{folder}/" + SCORED),
    ]),
    "npz files": ("arrays", "a.npz", [read_npz, read_points, load_retrieval, read_table, read_letor]),
    "mat files": ("mats", "a.mat", [read_points]),
    "results": ("results", "results.json", [_select, _command("select", "{folder}"), _command("report", "{folder}")]),
}  # fmt: skip
WRITERS = {"checkpoints": checkpoints, "arrays": arrays, "mats": mats, "results": results}


def attack(what: str, way: str) -> Tally:
    """Write all hostile files of a kind, and read each in every way."""
    tally = Tally("hostile", what)
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder, "canary")
        here = Path.cwd()
        sys.path.insert(0, folder)
        logging.disable(logging.CRITICAL)
        try:
            os.chdir(folder)
            Path(f"{MODULE}.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
            bomb = Bomb(canary, way)
            for number, (name, read, path) in enumerate(_tries(what, bomb, Path(folder))):
                tally.tries += 1
                with warnings.catch_warnings(), suppress(Exception, SystemExit), _quiet():
                    warnings.simplefilter("ignore")
                    read(path)
                if canary.exists():
                    tally.failures.append(f"{what}, {way}, number {number}: {name} executed a file")
                    canary.rmdir() if canary.is_dir() else canary.unlink()
        finally:
            os.chdir(here)
            sys.path.remove(folder)
            logging.disable(logging.NOTSET)
    return tally


def attack_apart(what: str, way: str) -> Tally:
    """The same in a child."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "tally")
        child = children.start(lambda: result.write_text(json.dumps(vars(attack(what, way)))), Path(folder, "output"))
        code = children.wait(child)
        if code == 0:
            return Tally(**json.loads(result.read_text()))
    return Tally("hostile", what, 1, [f"{what}, {way}: the process ended with {code}"])


def _quiet() -> Any:
    from contextlib import ExitStack, redirect_stderr, redirect_stdout

    stack = ExitStack()
    stack.enter_context(redirect_stdout(io.StringIO()))
    stack.enter_context(redirect_stderr(io.StringIO()))
    return stack


def _tries(what: str, bomb: Bomb, folder: Path) -> Any:
    if what == "caches":
        for files in caches(bomb):
            target = folder / "a.torchrank"
            target.mkdir(exist_ok=True)
            for name, content in files.items():
                (target / name).write_bytes(content)
            yield "open_folder", open_folder, target
        return
    kind, name, readers = READERS[what]
    (folder / SCORED).write_bytes(inputs.letor_text())
    (folder / "hostile.npz").write_bytes(arrays(bomb)[1])
    for content in WRITERS[kind](bomb):
        for read in readers:
            path = folder / "file" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            yield getattr(read, "__qualname__", str(read)), read, path


ALL = ("checkpoints", "npz files", "mat files", "caches", "results")
