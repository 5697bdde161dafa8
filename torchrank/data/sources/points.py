"""Class-labelled points as ranking data: every point is a query, and the training points of its class are relevant."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from torchrank.data.relevance import SameClass
from torchrank.data.sets import RankingSet
from torchrank.data.sources.download import Link, fetch
from torchrank.data.sources.point_tables import SCIKIT_LEARN, Points, read_points, read_scikit_learn
from torchrank.errors import DataError, DataWarning

Names = tuple[str, ...]


class Source(NamedTuple):
    """A known set of points: its files, where they may be below `data.root`, and where they come from."""

    page: str
    folders: Names
    files: Names
    test_files: Names = ()
    label: str = "last"
    links: tuple[Link, ...] = ()


def _uci(name: str, sha256: str, size: int) -> tuple[Link, ...]:
    url = f"https://archive.ics.uci.edu/ml/machine-learning-databases/{name}/{name}.data"
    return (Link(f"{name}.data", url, sha256, size),)


SOURCES = {
    "balance": Source(
        page="https://archive.ics.uci.edu/dataset/12/balance+scale",
        folders=("", "balance-scale", "uci/balance-scale"),
        files=("balance-scale.data",),
        label="first",
        links=_uci("balance-scale", "5611187ef7345d807aa8ae22615945ade52a190537c0b1434bd44c3e877c5bb4", 6250),
    ),
    "ionosphere": Source(
        page="https://archive.ics.uci.edu/dataset/52/ionosphere",
        folders=("", "ionosphere", "uci/ionosphere"),
        files=("ionosphere.data",),
        links=_uci("ionosphere", "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd", 76467),
    ),
    "isolet": Source(
        page="http://www.cad.zju.edu.cn/home/dengcai/Data/MLData.html",
        folders=("", "isolet", "uci/isolet"),
        files=("Isolet1.mat", "Isolet2.mat", "Isolet3.mat", "Isolet4.mat"),
        test_files=("Isolet5.mat",),
    ),
}


def load_points(
    source: str | Sequence[str] = "wine",
    *,
    root: str | Path | None = None,
    test: str | Sequence[str] | None = None,
    label: str | None = None,
    header: bool | None = None,
    fold: int = 1,
    seed: int = 0,
    test_fraction: float = 0.2,
    val_fraction: float = 0.2,
    validate: str = "held_out",
    download: bool = False,
) -> dict[str, RankingSet]:
    """Training points rank each other; validation and test points rank the training points. Label 1: same class.

    Args:
        source: a name of `SOURCES` or of `SCIKIT_LEARN`; or one or more csv, npz (x, y) or mat (fea, gnd) files.
        root: the folder of the files; by default the current one.
        test: the files of a fixed test part.
        label: the class column of csv files: "last" (the default), "first" or its name.
        header: whether line 1 of csv files names the columns; by default its cells decide.
        fold: the number of the random split, 1, 2, ...
        seed: draws the splits.
        test_fraction: the share of all points for testing, stratified by class; 0 for none. Not used with test files.
        val_fraction: the share of the other points for validation, stratified by class; 0 for none.
        validate: "held_out" holds out points for validation. "leave_one_out" holds out none (`val_fraction` is not
            used): val is train, whose points rank each other, so that its kNN error is the leave-one-out error.
        download: fetch the files that are missing.

    Returns:
        The sets "train", "val" and "test", those that have points.

    Example:
        >>> sets = load_points("iris", fold=2)
        >>> {name: len(part) for name, part in sets.items()}, sets["test"].lengths[:2].tolist()
        ({'train': 96, 'val': 24, 'test': 30}, [96, 96])
    """
    for option, share in (("data.test_fraction", test_fraction), ("data.val_fraction", val_fraction)):
        if not 0 <= share < 1:
            raise ValueError(f"{option} must be >= 0 and < 1, got {share}")
    if validate not in ("held_out", "leave_one_out"):
        raise ValueError(f"unknown data.validate={validate!r}: choose one of held_out, leave_one_out")
    if not isinstance(fold, Integral) or fold < 1:
        raise ValueError(f"data.fold must be an integer >= 1, got {fold}")
    training, testing = _read_source(_listed(source), root, _listed(test), download, label, header)
    x, classes = (np.concatenate(parts) for parts in zip(*training, *testing, strict=True))
    class_names, codes = np.unique(classes, return_inverse=True)
    rng = np.random.default_rng((seed, fold))
    free = sum(len(y) for _, y in training)
    parts = {"test": np.arange(free, len(x)) if testing else stratified(codes, test_fraction, rng)}
    rest = np.setdiff1d(np.arange(len(x)), parts["test"])
    parts["val"] = rest[stratified(codes[rest], val_fraction if validate == "held_out" else 0, rng)]
    train = np.setdiff1d(rest, parts["val"])
    if len(train) < 2:
        raise DataError(f"{source}: only {len(train)} of {len(x)} points are left for training: lower the fractions")
    names = tuple(str(name) for name in class_names)
    for part, rows in parts.items():
        if unknown := np.setdiff1d(codes[rows], codes[train]).tolist():
            found = f"{np.isin(codes[rows], unknown).sum()} of {len(rows)} {part} points"
            told = ", ".join(names[code] for code in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            text = f"{found} belong to classes without training points ({told}): they will always be misclassified."
            rank_zero_warn(f"{source}: {text}", category=DataWarning)
    sets = _sets(torch.from_numpy(x), torch.from_numpy(codes), names, train, parts)
    return sets if validate == "held_out" else {"train": sets["train"], "val": sets["train"], **sets}


def _sets(
    x: Tensor, codes: Tensor, names: tuple[str, ...], train: np.ndarray, parts: dict[str, np.ndarray]
) -> dict[str, RankingSet]:
    """The sets, with the training points as their corpus. Query ids number the points of all files from 0."""
    corpus, corpus_classes, own = x[train], codes[train], torch.arange(len(train))
    relevance = SameClass(corpus_classes, corpus_classes, names, own)
    sets = {"train": RankingSet(corpus, relevance, queries=corpus, query_ids=train.astype(str), name="train")}
    for name in ("val", "test"):
        rows = parts[name]
        if len(rows):
            relevance = SameClass(codes[rows], corpus_classes, names)
            sets[name] = RankingSet(corpus, relevance, queries=x[rows], query_ids=rows.astype(str), name=name)
    return sets


def stratified(classes: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Sorted positions of floor(fraction * n) points; each class contributes its share, rounded up or down.

    It takes every n/k-th point, from a random start, of the points sorted by class, in random order inside a class.

    Example:
        >>> classes = np.repeat([0, 1, 2], [50, 30, 20])
        >>> np.bincount(classes[stratified(classes, 0.2, np.random.default_rng(0))])
        array([10,  6,  4])
    """
    size = int(fraction * len(classes) + 1e-9)
    shuffled = rng.permutation(len(classes))
    shuffled = shuffled[np.argsort(classes[shuffled], kind="stable")]
    start = rng.random()
    return np.sort(shuffled[((np.arange(size) + start) * len(classes) / max(size, 1)).astype(np.int64)])


def _read_source(
    names: Names, root: str | Path | None, test: Names, download: bool, label: str | None, header: bool | None
) -> tuple[list[Points], list[Points]]:
    """The points of the training files, and of the test files."""
    if test and names[0] in (*SOURCES, *SCIKIT_LEARN):
        raise ValueError(f"data.test is for your own files, not for data.source={names[0]}")
    if names[0] in SCIKIT_LEARN:
        return [read_scikit_learn(names[0])], []
    known = SOURCES.get(names[0], Source("", ("",), names, test))
    if download:
        _download(names, known, Path("." if root is None else root))
    paths = [_find(name, root, known, names) for name in (*known.files, *known.test_files)]
    points = [read_points(path, label=label or known.label, header=header) for path in paths]
    for path, (x, _) in zip(paths, points, strict=True):
        if x.shape[1] != points[0][0].shape[1]:
            raise DataError(f"{path} has {x.shape[1]} features, but {paths[0]} has {points[0][0].shape[1]}")
    return points[: len(known.files)], points[len(known.files) :]


def _listed(names: str | Sequence[str] | None) -> Names:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _download(names: Names, known: Source, base: Path) -> None:
    """Fetch the files that are missing."""
    folders = [base / folder for folder in known.folders]
    files = (*known.files, *known.test_files)
    if not known.links and not all(any((folder / name).is_file() for folder in folders) for name in files):
        page = f": get it from {known.page}" if known.page else ""
        raise ValueError(f"data.download: no stable link is known for points {', '.join(names)}{page}")
    fetch(known.links, folders)


def _find(name: str, root: str | Path | None, known: Source, names: Names) -> Path:
    base = Path("." if root is None else root)
    for folder in known.folders:
        if (base / folder / name).is_file():
            return base / folder / name
    if known.page:
        links = " (data.download=true fetches it)" if known.links else ""
        advice = f"Get it from {known.page}{links} and set data.root=FOLDER, where FOLDER/{name} is the file."
    else:
        advice = f"data.source must be a file below data.root, or one of {', '.join((*SOURCES, *SCIKIT_LEARN))}."
    raise FileNotFoundError(f"points {', '.join(names)}: not found: {base / name} (data.root={root}). {advice}")
