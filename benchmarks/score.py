"""`torchrank score` of a large LETOR file by a linear ranker: its speed beside the reader's own, and its peak memory.

    python benchmarks/score.py [--megabytes 1000] [--repeats 3] [--folder FOLDER] [--quick]

Writes an MSLR-shaped file (136 features, all present), reads it by the block reader alone and scores it by the command,
in turn in one process. The peak memory is that of a process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from quick import parse
from reader import mslr_rows, verdict, write

FEATURES = 136
MEMORY_MB, SHARE = 800, 0.8  # what is wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the file")
    parser.add_argument("--repeats", type=int, default=3, help="times that each is measured; the best counts")
    parser.add_argument("--folder", type=Path, help="where to write the file; a temporary folder without it")
    arguments = parse(parser, megabytes=1, repeats=1)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path, checkpoint = Path(folder, "lists.txt"), Path(folder, "linear.ckpt")
        write(path, mslr_rows(), arguments.megabytes * 10**6)
        save_linear(checkpoint)
        report(path, checkpoint, arguments.repeats)


def save_linear(checkpoint: Path) -> None:
    """A linear ranker with a transform, fitted for one epoch on a few synthetic lists."""
    from pytorch_lightning import Trainer

    from torchrank import ListNet, RankingDataModule
    from torchrank.data import synthetic_splits

    sets = synthetic_splits(num_queries=30, num_features=FEATURES)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, num_sanity_val_steps=0,
    )  # fmt: skip
    ranker = ListNet(FEATURES, transform="standard", rounds=1)
    trainer.fit(ranker, datamodule=RankingDataModule.from_sets(train=sets["train"], val=sets["val"]))
    trainer.save_checkpoint(checkpoint)


def report(path: Path, checkpoint: Path, repeats: int) -> None:
    from torchrank.cli import main as torchrank
    from torchrank.data.letor.stream import stream_letor

    out, megabytes = path.with_name("scores.txt"), path.stat().st_size / 1e6
    command = ["score", str(checkpoint), str(path), "--out", str(out)]
    rows = sum(len(piece.labels) for piece in stream_letor(path, num_features=FEATURES))  # and the file is in the cache
    reading, scoring = float("inf"), float("inf")
    for _ in range(repeats):
        reading = min(reading, seconds(lambda: sum(1 for _ in stream_letor(path, num_features=FEATURES))))
        scoring = min(scoring, seconds(lambda: torchrank(command)))
    with out.open() as file:
        if sum(1 for _ in file) != rows:
            raise SystemExit("the number of scores is not the number of rows")
    print(f"{megabytes:.0f} MB, {rows:,} rows, {FEATURES} features")
    print(f"  reader alone  {reading:7.2f} s  {megabytes / reading:6.0f} MB/s")
    print(f"  score         {scoring:7.2f} s  {megabytes / scoring:6.0f} MB/s  (with loading the checkpoint)")
    verdict("% of the reader's speed", 100 * reading / scoring, 100 * SHARE, at_least=True)
    verdict("MB of peak memory", peak_memory(command), MEMORY_MB, at_least=False)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_memory(command: list[str]) -> float:
    """Peak MB of a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "torchrank.cli", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("torchrank score failed")
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main()
