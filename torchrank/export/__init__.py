"""A ranker that leaves: its score of one list as ONNX graph, torch program or JSON, compared before it is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchrank
from torchrank.errors import check_choice
from torchrank.export.errors import NotExportable
from torchrank.export.formats import FORMATS, Made
from torchrank.export.rows import likely_rows
from torchrank.files import write_atomically
from torchrank.rankers.core.ranker import Ranker

LENGTHS = (1, 2, 7, 100)  # of the lists that are compared
TOLERANCE = 1e-5  # largest difference of a score, relative to the largest score of the list if that is above 1


def export_ranker(ranker: Ranker, path: str | os.PathLike[str], to: str | None = None) -> Path:
    """Write the score of one list, transform included, in a form that needs neither torchrank nor Lightning.

    The input of what is written are the raw rows (n, D) of one whole list, in float32 and for any n >= 1; the output
    are its scores (n,). Before it is written, it scores random lists of 1, 2, 7 and 100 documents, and has to agree
    with the ranker within 1e-5.

    Args:
        ranker: a fitted ranker.
        path: of the file, which is replaced as a whole or not at all.
        to: onnx, pt2 (torch.export) or json (linear models, rules and trees); None: by the suffix of the path.

    Returns:
        The path. A ranker without a form in this format raises a `NotExportable` that says why.

    Example:
        >>> import json, tempfile
        >>> from torchrank import ListNet, RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> ranker = ListNet(1, transform=None).fit(RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_ranker(ranker, f"{folder}/model.json")
        ...     json.loads(path.read_text())["model"]["kind"]
        'linear'
    """
    path = Path(path)
    kind = format_of(path, to)
    if path.is_dir():
        raise ValueError(f"cannot write a model to {path}: it is a folder")
    made = FORMATS[kind](ranker, about(ranker))
    check_same(ranker, made)
    write_atomically(path, lambda file: file.write(made.content))
    return path


def format_of(path: Path, to: str | None) -> str:
    """The format by name or by suffix."""
    if to is not None:
        check_choice(FORMATS, to=to)
        return to
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"cannot tell the format of {path}: end it in {', '.join(f'.{name}' for name in FORMATS)}")
    return kind


def about(ranker: Ranker) -> dict[str, Any]:
    """What every file says about its ranker, in plain values."""
    names = getattr(ranker, "feature_names", None)
    return {
        "torchrank": torchrank.__version__,
        "ranker": type(ranker).__name__,
        "num_features": ranker.num_features,
        "feature_names": None if names is None else list(names),
    }


@torch.no_grad()
def check_same(ranker: Ranker, made: Made) -> None:
    """Refuse what does not give the scores of the ranker."""
    was_training, generator = ranker.training, torch.Generator().manual_seed(0)
    ranker.eval()
    for count in LENGTHS:
        for rows in _lists(ranker, count, generator):
            expected = ranker(rows.to(ranker.device), torch.tensor([0, count], device=ranker.device)).float().cpu()
            try:
                worst = float((made.score(rows) - expected).abs().max() / expected.abs().max().clamp(min=1))
            except RuntimeError as error:  # sizes in it depend on values, as in the network of a user
                ranker.train(was_training)
                reason = f"{error}".splitlines()[0]
                raise NotExportable(
                    f"nothing was written: the exported file fails on {count} rows: {reason}"
                ) from error
            if not worst <= TOLERANCE:
                ranker.train(was_training)
                raise NotExportable(
                    f"nothing was written: the exported {type(ranker).__name__} differs from the ranker by {worst:.1e} "
                    f"on a list of {count} documents, more than {TOLERANCE:g}"
                )
    ranker.train(was_training)


def _lists(ranker: Ranker, count: int, generator: torch.Generator) -> list[Tensor]:
    """Rows like those of the training lists where the transform knows them; then such with ties, and zeros."""
    rows = likely_rows(ranker.transform, count, generator)
    return [rows, rows.round(), torch.zeros_like(rows)]
