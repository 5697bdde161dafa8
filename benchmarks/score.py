"""`torchrank score` of a large LETOR file by a linear ranker: its speed beside the reader's own, and its peak memory.

Writes an MSLR-shaped file (136 features, all present), reads it by the block reader alone and scores it by the command,
in turn in one process, by the time that passes: both use all cores. The peak memory is that of a process of its own.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

from benchmarks.reader import mslr_rows, write
from benchmarks.suite import Row, Setting, run_alone

FEATURES = 136
SCORE = "import sys; from torchrank.cli import main; sys.exit(main(sys.argv[1:]))"


def rows(setting: Setting) -> Iterator[Row]:
    from torchrank.cli import main as torchrank
    from torchrank.data.letor.stream import stream_letor

    with tempfile.TemporaryDirectory() as folder:
        path, checkpoint, out = (Path(folder, name) for name in ("lists.txt", "linear.ckpt", "scores.txt"))
        write(path, mslr_rows(), setting.size(1000, 1) * 10**6)
        save_linear(checkpoint)
        command = ["score", str(checkpoint), str(path), "--out", str(out)]
        count = sum(len(piece.labels) for piece in stream_letor(path, num_features=FEATURES))
        reading, scoring = setting.race(
            lambda: sum(1 for _ in stream_letor(path, num_features=FEATURES)),
            lambda: quietly(torchrank, command),
            repeats=3,
            wall=True,
        )
        assert len(out.read_text().splitlines()) == count, "the number of scores is not the number of rows"
        name = f"{path.stat().st_size / 1e6:,.0f} MB, {count:,} rows"
        yield Row(name, scoring, peer="the reader alone", theirs=reading, bar=1.25)
        yield Row(f"{name}, peak memory", run_alone(SCORE, *command, folder=folder).peak, "MB", "limit", 800, bar=1)


def quietly(function: Callable[[list[str]], object], command: list[str]) -> None:
    with redirect_stdout(io.StringIO()):
        function(command)


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
