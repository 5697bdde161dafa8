"""Reading, the cache, start-up, scoring and training from files, beside scikit-learn, pandas and plain scripts.

The files have the shape of MSLR-WEB30K (136 features, all present) and of Yahoo's (700 features, 30% present), with
numbers that are drawn. Programs are processes of their own, whose CPU seconds and peak memory are measured.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.run import TORCHRANK, Case, Setting, Sides, peak_memory, run_program

READ_BY_SCIKIT_LEARN = """
import sys
from sklearn.datasets import load_svmlight_file
x, y, qid = load_svmlight_file(sys.argv[1], query_id=True)
x = x.toarray()
"""
READ = "import sys, torchrank; lists = torchrank.read_letor(sys.argv[1])"
SCORE_BY_SCIKIT_LEARN = (
    READ_BY_SCIKIT_LEARN
    + """
import numpy
weight = numpy.ones(x.shape[1])
numpy.savetxt(sys.argv[2], (x - x.mean(0)) / (x.std(0) + 1e-9) @ weight)
"""
)
TRAIN_BY_LIGHTGBM = """
import sys, lightgbm, numpy
from sklearn.datasets import load_svmlight_file
sets = []
for path in sys.argv[1:3]:
    x, y, qid = load_svmlight_file(path, query_id=True)
    group = numpy.diff(numpy.flatnonzero(numpy.r_[True, qid[1:] != qid[:-1], True]))
    sets.append(lightgbm.Dataset(x.toarray(), y, group=group))
given = {"objective": "lambdarank", "learning_rate": 0.1, "num_threads": 1, "verbosity": -1, "eval_at": [10],
         "metric": "ndcg"}
booster = lightgbm.train(given, sets[0], 50, valid_sets=sets[1:])
x, y, qid = load_svmlight_file(sys.argv[3], query_id=True)
booster.predict(x.toarray())
"""


def cases(setting: Setting) -> Iterator[Case]:
    folder, size = setting.scratch, 200_000 if setting.quick else 60_000_000
    mslr, yahoo = folder / f"MSLR-{size}.txt", folder / f"Yahoo-{size}.txt"
    rows, few = 200 if setting.quick else 20_000, size // 2
    every = [
        Case(f"read MSLR-shaped LETOR text, {size / 1e6:g} MB", partial(reading, mslr, "MSLR", size), 20),
        Case(f"read Yahoo-shaped LETOR text, {size / 1e6:g} MB", partial(reading, yahoo, "Yahoo", size), 20),
        Case("read MSLR-shaped LETOR text, peak memory", partial(memory, mslr, size), 0),
        Case("open MSLR-shaped LETOR text from the cache", partial(cache, mslr, size), 2),
        Case(f"read csv, {rows:,} rows of 136 features", partial(table, folder / "table.csv", rows), 3),
        Case(f"read parquet, {rows:,} rows of 136 features", partial(table, folder / "table.parquet", rows), 3),
        Case("import torchrank.functional", partial(start_up, folder, "import torchrank.functional"), 8),
        Case("import torchrank", partial(start_up, folder, "import torchrank"), 8),
        Case("torchrank --version", partial(start_up, folder, TORCHRANK, "--version"), 8),
        Case("torchrank train --help", partial(start_up, folder, TORCHRANK, "train", "--help"), 8),
        Case("torchrank score of the MSLR-shaped text", partial(scoring, mslr, size, run_program), 20),
        Case("torchrank score, peak memory", partial(scoring, mslr, size, peak_memory), 0),
        Case(f"torchrank train model=gbdt, {3 * few / 1e6:g} MB of text", partial(training, folder, few, True), 30),
        Case("torchrank train model=gbdt, from the cache", partial(training, folder, few, False), 30),
    ]
    left_out = ("memory", "import", "--help", "train model=gbdt, from")  # of a quick run: processes take seconds
    return (case for case in every if not setting.quick or not any(part in case.name for part in left_out))


# ---- files -----------------------------------------------------------------------------------------------------------


def write_letor(path: Path, kind: str, size: int, seed: int = 0) -> Path:
    """Lists of 1 to 239 documents; MSLR's values are mostly short whole numbers, Yahoo's have five digits."""
    if path.exists():
        return path
    random, features = np.random.default_rng(seed), 136 if kind == "MSLR" else 700
    pool = 500  # different texts of a feature
    whole = random.random((features, pool)) < (0.65 if kind == "MSLR" else 0)
    values = np.where(whole, random.integers(0, 300, whole.shape), random.random(whole.shape) * 30)
    texts = [[f"{f + 1}:{value:.6g}" for value in row] for f, row in enumerate(values)]
    part, query = path.with_suffix(".part"), 0
    with part.open("w") as file:
        while size > 0:
            query += 1
            for _ in range(random.integers(1, 240)):
                present = range(features) if kind == "MSLR" else np.flatnonzero(random.random(features) < 0.3).tolist()
                chosen = random.integers(0, pool, features).tolist()
                tokens = " ".join([texts[f][chosen[f]] for f in present])
                size -= file.write(f"{random.integers(5)} qid:{query} {tokens}\n")
    part.rename(path)
    return path


def write_table(path: Path, rows: int) -> Path:
    import polars as pl

    if not path.exists():
        random = np.random.default_rng(0)
        frame = pl.DataFrame(random.random((rows, 136), dtype=np.float32), schema=[f"f{i}" for i in range(136)])
        labels = {"label": random.integers(0, 5, rows), "query": np.arange(rows) // 100}
        frame = frame.with_columns(**{name: pl.Series(values) for name, values in labels.items()})
        part = path.with_suffix(".part")
        frame.write_csv(part) if path.suffix == ".csv" else frame.write_parquet(part)
        part.rename(path)
    return path


# ---- reading ---------------------------------------------------------------------------------------------------------


def reading(path: Path, kind: str, size: int) -> Sides:
    from torchrank import read_letor

    write_letor(path, kind, size)
    return Sides(lambda: read_letor(path), {"scikit-learn": lambda: scikit_learn(path, read_letor(path).x)})


def scikit_learn(path: Path, expected: Any) -> Callable[[], object]:
    """Its reader, which has to find the same numbers."""
    from sklearn.datasets import load_svmlight_file

    def call() -> np.ndarray:
        x, _, _ = load_svmlight_file(str(path), query_id=True)
        return x.toarray()

    assert np.array_equal(expected.numpy(), call().astype(np.float32)), "the readers find different numbers"
    return call


def memory(path: Path, size: int) -> Sides:
    write_letor(path, "MSLR", size)
    ours, theirs = (partial(peak_memory, code, str(path), folder=path.parent) for code in (READ, READ_BY_SCIKIT_LEARN))
    return Sides(ours, {"scikit-learn": lambda: theirs}, unit="MB")


def cache(path: Path, size: int) -> Sides:
    from torchrank import read_letor
    from torchrank.data.cache import cached

    write_letor(path, "MSLR", size)
    folder = path.parent / f"cache-{os.getpid()}"
    peers = {"reading the text": lambda: partial(read_letor, path)}
    return Sides(lambda: cached(path, read_letor, {}, cache_dir=folder), peers)


def table(path: Path, rows: int) -> Sides:
    from torchrank import read_table

    write_table(path, rows)

    def pandas() -> Callable[[], object]:
        import pandas as pd
        import torch

        def call() -> object:
            frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
            sizes = frame.groupby("query", sort=False).size()
            x = torch.from_numpy(frame.drop(columns=["label", "query"]).to_numpy(np.float32))
            return x, torch.from_numpy(frame["label"].to_numpy()), sizes

        return call

    return Sides(lambda: read_table(path), {"pandas": pandas})


# ---- programs --------------------------------------------------------------------------------------------------------


def start_up(folder: Path, *command: str) -> Sides:
    torch = partial(run_program, "import torch", folder=folder)
    return Sides(partial(run_program, *command, folder=folder), {"import torch": lambda: torch})


def scoring(path: Path, size: int, run: Callable[..., Any]) -> Sides:
    """Of the whole text by a linear ranker with a transform, from file to file."""
    write_letor(path, "MSLR", size)
    checkpoint, out = path.with_suffix(f".{os.getpid()}.ckpt"), str(path.with_suffix(".scores"))
    save_linear(checkpoint)
    ours = partial(run, TORCHRANK, "score", str(checkpoint), str(path), "--out", out, folder=path.parent)
    plain = partial(run, SCORE_BY_SCIKIT_LEARN, str(path), out, folder=path.parent)
    return Sides(ours, {"scikit-learn and numpy": lambda: plain}, unit="s" if run is run_program else "MB")


def save_linear(checkpoint: Path) -> None:
    from pytorch_lightning import Trainer

    from torchrank import ListNet, RankingDataModule
    from torchrank.data import synthetic_splits

    sets = synthetic_splits(30, num_features=136, mean_length=20.0)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_epochs=1, accelerator="cpu", num_sanity_val_steps=0, **quiet)
    data = RankingDataModule.from_sets(train=sets["train"], val=sets["val"])
    trainer.fit(ListNet(136, transform="standard", rounds=1), datamodule=data)
    trainer.save_checkpoint(checkpoint)


def training(folder: Path, size: int, first: bool) -> Sides:
    """From three text files to the tested ranker: the same trees by LightGBM, which reads with scikit-learn."""
    names = [f"{split}-{size}.txt" for split in ("train", "val", "test")]
    for seed, name in enumerate(names):
        write_letor(folder / name, "MSLR", size, seed)
    run, cache = folder / f"run-{os.getpid()}", folder / f"train-cache-{os.getpid()}"
    given = ["model=gbdt", "model.rounds=50", "model.lr=0.1", "model.threads=1", "data=files", f"data.root={folder}"]
    given += [f"data.{split}={name}" for split, name in zip(("train", "val", "test"), names, strict=True)]
    given += [f"data.cache_dir={cache}", f"hydra.run.dir={run}", "show=false", "callbacks.early_stopping.patience=1000"]

    def ours() -> None:
        shutil.rmtree(run, ignore_errors=True)
        if first:
            shutil.rmtree(cache, ignore_errors=True)
        run_program(TORCHRANK, "train", *given, folder=folder)

    plain = partial(run_program, TRAIN_BY_LIGHTGBM, *(str(folder / name) for name in names), folder=folder)
    return Sides(ours, {"LightGBM": lambda: plain})
