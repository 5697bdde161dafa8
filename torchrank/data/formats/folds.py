"""Splits the lists of a file by query into folds in the layout of MSLR-WEB: Fold1/train.txt, vali.txt, test.txt."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from torchrank.data.formats.pieces import Source
from torchrank.data.formats.text import letor_lines, side_endings, side_lines
from torchrank.errors import DataError, check_integer


def write_folds(source: Source, out: Path, folds: int, seed: int) -> list[dict[str, int]]:
    """Write the folds in LETOR format, all or none; the queries of each part are drawn by `seed`.

    As in LETOR, the queries are divided into as many parts S1, S2, ... as there are folds, and the folds rotate: of
    five folds the first one trains on S1, S2, S3, validates on S4 and tests on S5, the second one trains on S2, S3, S4,
    and so on. Every query is in the test part of exactly one fold.

    Args:
        source: the lists.
        out: the folder of the folds, which must not exist or be empty.
        folds: their number.
        seed: draws the parts.

    Returns:
        The number of queries in train, vali and test of each fold.
    """
    check_integer(">= 3", folds=folds)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not an empty folder: name another one with --out")
    part = draw_parts(source, folds, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        parts = [temporary / f"S{number}" for number in range(1, folds + 1)]
        _write_parts(parts, source, part)
        sizes = np.bincount(list(part.values()), minlength=folds)
        counts = [_write_fold(temporary / f"Fold{fold + 1}", fold, parts, sizes) for fold in range(folds)]
        for path in temporary.glob("S*"):
            path.unlink()
        temporary.chmod(0o755)
        if out.exists():
            out.rmdir()
        temporary.rename(out)
        return counts
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def draw_parts(source: Source, folds: int, seed: int) -> dict[str, int]:
    """The part 0 .. folds - 1 of each query; parts differ by one query at most."""
    found = (query for piece in source.read() for query in piece.queries.unique(maintain_order=True))
    queries = list(dict.fromkeys(found))
    if len(queries) < folds:
        raise DataError(f"{len(queries)} queries are too few for {folds} folds")
    order = np.random.default_rng(seed).permutation(len(queries))
    return {queries[place]: number for number, places in enumerate(np.array_split(order, folds)) for place in places}


def _write_parts(parts: list[Path], source: Source, part: dict[str, int]) -> None:
    """Write every row to the file of its part, in one pass over the source."""
    endings = [ending for ending, there in side_endings(source.layout) if there]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in parts]
        sides = [[stack.enter_context(Path(f"{path}{end}").open("wb")) for end in endings] for path in parts]
        for piece in source.read():
            numbers = np.array([part[query] for query in piece.queries])
            for number, file in enumerate(files):
                rows = piece.take(numbers == number)
                if len(rows.labels):
                    file.write(letor_lines(rows, source.layout, first=not file.tell()))
                    for ending, side in zip(endings, sides[number], strict=True):
                        side.write(side_lines(rows, ending))


def _write_fold(folder: Path, fold: int, parts: list[Path], sizes: np.ndarray) -> dict[str, int]:
    """Write one fold as parts in a row, and count its queries."""
    folder.mkdir()
    order = [(fold + step) % len(parts) for step in range(len(parts))]
    splits = {"train": order[:-2], "vali": order[-2:-1], "test": order[-1:]}
    endings = [end for end in ("", ".weight", ".position") if Path(f"{parts[0]}{end}").exists()]
    for split, numbers in splits.items():
        for ending in endings:
            with (folder / f"{split}.txt{ending}").open("wb") as file:
                for number in numbers:
                    with Path(f"{parts[number]}{ending}").open("rb") as rows:
                        shutil.copyfileobj(rows, file, 1 << 20)
    return {split: int(sizes[numbers].sum()) for split, numbers in splits.items()}
