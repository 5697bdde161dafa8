"""`python train.py model=lgmml` end to end on a LETOR text of the shape of MSLR-WEB30K: first run, second run, memory.

Writes 18,919 / 6,306 / 6,306 queries with 136 features (about 3.8 million rows; `--scale 0.1` a tenth of it), fits
with 13 rounds (`groups=random`, no early stopping), once reading the text and once from its cache, then with the
defaults. All are processes of their own with the CPU time of all their threads. `--against REVISION` runs another
version on the same text; `--scratch FOLDER` keeps it for the next time.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import polars as pl

from benchmarks.suite import Finished, Row, Setting, run_alone
from torchrank import RankingSet
from torchrank.data import synthetic_splits

QUERIES = 31_531
CHUNK = 20_000  # rows that are written at once
TRAIN = "import sys; from torchrank.train import main; sys.argv[0] = 'train.py'; main()"
FORCED = ["model.groups=random", "model.rounds=13", "callbacks.early_stopping.patience=1000"]


def rows(setting: Setting) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as runs:
        folder = nullcontext(setting.scratch) if setting.scratch else tempfile.TemporaryDirectory()
        with folder as scratch:
            text = written(setting, Path(scratch))
            megabytes = sum((text / f"{split}.txt").stat().st_size for split in ("train", "val", "test")) / 1e6
            what = f"text of {megabytes:,.0f} MB"
            yield from phases(f"{what}, 13 rounds, first run", text, Path(runs, "first"), FORCED)
            if setting.quick:
                return
            yield from phases(f"{what}, 13 rounds, from the cache", text, Path(runs, "second"), FORCED)
            yield from phases(f"{what}, defaults, from the cache", text, Path(runs, "default"), [])


def written(setting: Setting, scratch: Path) -> Path:
    """The folder of the text, written unless it is there."""
    queries = setting.size(QUERIES, 60)
    folder = scratch / f"mslr-{queries}"
    if not (folder / "test.txt").exists():
        folder.mkdir(exist_ok=True)
        for split, lists in synthetic_splits(queries, mean_length=120 if not setting.quick else 10).items():
            part = folder / f"{split}.part"
            write_letor(lists, part)
            part.rename(folder / f"{split}.txt")
    return folder


def write_letor(lists: RankingSet, path: Path) -> None:
    """Four decimals, every feature present."""
    x, labels = lists.x.numpy(), lists.labels.int().numpy()
    queries = [query for query, length in enumerate(lists.lengths) for _ in range(length)]
    with path.open("wb") as file:
        for first in range(0, len(x), CHUNK):
            some = slice(first, first + CHUNK)
            frame = pl.DataFrame(x[some].round(4), schema=[str(column) for column in range(1, x.shape[1] + 1)])
            texts = [pl.Series(labels[some]).cast(pl.String), pl.lit(" qid:")]
            texts.append(pl.Series(queries[some]).cast(pl.String))
            for name in frame.columns:
                texts += [pl.lit(f" {name}:"), pl.col(name).cast(pl.String)]
            lines = frame.select(pl.concat_str(texts).alias("line"))
            lines.write_csv(file, include_header=False, quote_style="never")


def phases(name: str, text: Path, folder: Path, options: list[str]) -> Iterator[Row]:
    """A run: its CPU time, the time that passes by phase, and its peak memory beside what is allowed."""
    files = [f"data.{split}={split}.txt" for split in ("train", "val", "test")]
    given = [
        "model=lgmml",
        "data=files",
        f"data.root={text}",
        f"data.cache_dir={folder.parent}/cache",
        *files,
        *options,
    ]
    given += [f"hydra.run.dir={folder}", "show=false"]
    run = run_alone(TRAIN, *given, folder=folder.parent)
    results = json.loads((folder / "results.json").read_text())
    seconds = results["seconds"]
    told = ", ".join(f"{phase} {time:.3g} s" for phase, time in before(run, seconds).items())
    ndcg = results["val"]["default"]["measures"]["ndcg@10"]
    best = f"the best after {results['steps']} rounds, NDCG@10 {ndcg:.4f} on validation"
    note = f"{told} of the time that passes; {best}"
    yield Row(name, run.cpu, "s", note=note, earlier=0.5 if options else None)
    rows = sum(1 for split in ("train", "val", "test") for _ in (text / f"{split}.txt").open("rb"))
    data = rows * 136 * 4 / 1e6
    allowed = 1.5 * data + 1000
    told = f"{run.own:,.0f} MB are its own, the others pages of mapped files" if run.own else ""
    yield Row(f"{name}, peak memory", run.peak, "MB", "1.5 times the data and 1 GB:", allowed, 1, told)


def before(run: Finished, seconds: dict[str, float]) -> dict[str, float]:
    """The phases of a run, with the imports and what else is in no other phase."""
    return {"imports and the rest": run.wall - sum(seconds.values()), **seconds}
