"""The known data sets: where their files lie, how they are read, and where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from torchrank.data.cache import cached
from torchrank.data.download import Link, fetch
from torchrank.data.letor import read_letor
from torchrank.data.lists import RankingSet

NONE: Mapping[str, Any] = MappingProxyType({})
LETOR_FILES = MappingProxyType(
    {
        "train": ("train.txt", "trainingset.txt"),
        "val": ("vali.txt", "validationset.txt"),
        "test": ("test.txt", "testset.txt"),
    }
)
COMPRESSED = ("", ".gz", ".zst")


class Entry(NamedTuple):
    """One data set. A split without a file is held out from the training queries if `held_out` gives its share."""

    page: str  # public page to get it from
    folders: tuple[str, ...] = ("",)  # where the files may lie below data.root; {fold} is the fold's number
    files: Mapping[str, tuple[str, ...]] = LETOR_FILES  # names that each split may have
    folds: int = 1
    max_label: int | None = None  # the highest grade, None: that of the training file
    letor_threshold: int = 1  # relevant from this grade on for the LETOR tools
    reader: Mapping[str, Any] = NONE  # options of read_letor
    held_out: Mapping[str, float] = NONE
    links: tuple[Link, ...] = ()
    subsets: Mapping[str, Entry] = NONE


LETOR_PAGE = "https://www.microsoft.com/en-us/research/project/letor-learning-rank-information-retrieval"
LIGHTGBM = "https://raw.githubusercontent.com/microsoft/LightGBM/v4.6.0/examples/lambdarank"


def _lightgbm(path: str, sha256: str, size: int) -> Link:
    return Link(path, f"{LIGHTGBM}/{path}", sha256, size)


def _folds(page: str, *folders: str, max_label: int, letor_threshold: int = 1) -> Entry:
    """Five folds: one of `folders` holds Fold1 .. Fold5."""
    below = tuple(f"{folder}/Fold{{fold}}".removeprefix("/") for folder in folders)
    return Entry(page, below, folds=5, max_label=max_label, letor_threshold=letor_threshold)


def _gov(kind: str, year: int) -> Entry:
    """A set of LETOR 3.0's .gov collection: binary labels, query-level normalised."""
    folder = f"{year}_{kind}_dataset"
    folders = (f"Gov/QueryLevelNorm/{folder}", f"QueryLevelNorm/{folder}", folder, f"{kind.upper()}{year}")
    return _folds(f"{LETOR_PAGE}/letor-3-0/", *folders, max_label=1)


OHSUMED = _folds(
    f"{LETOR_PAGE}/letor-3-0/", "OHSUMED/QueryLevelNorm", "QueryLevelNorm", "OHSUMED", "OHSUMED/Data", "", max_label=2
)
YAHOO = "https://webscope.sandbox.yahoo.com/catalog.php?datatype=c (C14B, Learning to Rank Challenge)"

CATALOGUE: dict[str, Entry] = {
    "mslr10k": _folds(
        "https://www.microsoft.com/en-us/research/project/mslr/", "MSLR-WEB10K", "", max_label=4, letor_threshold=2
    ),
    "mslr30k": _folds(
        "https://www.microsoft.com/en-us/research/project/mslr/", "MSLR-WEB30K", "", max_label=4, letor_threshold=2
    ),
    "mq2007": _folds(f"{LETOR_PAGE}/letor-4-0/", "MQ2007", "", max_label=2),
    "mq2008": _folds(f"{LETOR_PAGE}/letor-4-0/", "MQ2008", "", max_label=2),
    "letor3": Entry(
        page=f"{LETOR_PAGE}/letor-3-0/",
        folds=5,
        subsets={
            "td2003": _gov("td", 2003),
            "td2004": _gov("td", 2004),
            "hp2003": _gov("hp", 2003),
            "hp2004": _gov("hp", 2004),
            "np2003": _gov("np", 2003),
            "np2004": _gov("np", 2004),
            "ohsumed": OHSUMED,
        },
    ),
    "ohsumed": OHSUMED,
    "yahoo1": Entry(
        page=YAHOO,
        folders=("ltrc_yahoo", ""),
        files={"train": ("set1.train.txt",), "val": ("set1.valid.txt",), "test": ("set1.test.txt",)},
        max_label=4,
    ),
    "yahoo2": Entry(
        page=YAHOO,
        folders=("ltrc_yahoo", ""),
        files={"train": ("set2.train.txt",), "val": ("set2.valid.txt",), "test": ("set2.test.txt",)},
        max_label=4,
    ),
    # Istella-S comes with a validation part, the full set without. Features hold 1.797e308 for "none".
    "istella": Entry(
        page="http://quickrank.isti.cnr.it/istella-dataset/",
        folders=("sample", "istella-s-letor/sample", "full", "istella-letor/full", ""),
        max_label=4,
        reader={"sentinel": "clip"},
        held_out={"val": 0.2},
    ),
    # The labels of the contest's test file were never published.
    "yandex": Entry(
        page="http://imat2009.yandex.ru/en/datasets",
        folders=("", "imat2009", "imat2009-datasets"),
        files={"train": ("imat2009_learning.txt",)},
        max_label=4,
        reader={"qid": "comment"},
        held_out={"val": 0.2, "test": 0.2},
    ),
    "lightgbm": Entry(
        page="https://github.com/microsoft/LightGBM/tree/master/examples/lambdarank",
        folders=("", "lightgbm-lambdarank", "examples/lambdarank"),
        files={"train": ("rank.train",), "test": ("rank.test",)},
        max_label=4,
        reader={"qid": "file"},
        held_out={"val": 0.2},
        links=(
            _lightgbm("rank.train", "a0c7201c89120879c14a5059e091f441cbf2a29b8aaef363885ccb1a530448df", 2479271),
            _lightgbm("rank.train.query", "40cb5fef637229311cd30fab13cb7fb633b023e86a87ff04ec55db420143d6af", 580),
            _lightgbm("rank.test", "3b1219ce117a0a36d2f76c02de7e7831c1d79af0d40f5195c03178bbe26c824b", 649930),
            _lightgbm("rank.test.query", "36dca82ba3bf99201bac3987b00a8fbf6fe5f563e9fa6d0da90e783710a32df4", 146),
        ),
    ),
    "files": Entry(page="", held_out={"val": 0.2}),
}


def find_entry(name: str, subset: str | None = None) -> Entry:
    """The entry of a data set; of one of its parts where it has several (`letor3`).

    >>> find_entry("letor3", "td2003").max_label, find_entry("mslr30k").letor_threshold
    (1, 2)
    """
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(CATALOGUE)}")
    entry = CATALOGUE[name]
    if entry.subsets and subset not in entry.subsets:
        raise ValueError(f"data.subset={subset}: {name} has the subsets {', '.join(entry.subsets)}")
    if not entry.subsets and subset is not None:
        raise ValueError(f"data.subset={subset}: {name} has no subsets")
    return entry.subsets[subset] if subset is not None else entry


def load_splits(
    name: str,
    *,
    root: str | Path | None = None,
    fold: int = 1,
    subset: str | None = None,
    seed: int = 0,
    train: str | Path | None = None,
    val: str | Path | None = None,
    test: str | Path | None = None,
    num_features: int | None = None,
    download: bool = False,
    cache_dir: str | Path | None = None,
    **reader: Any,
) -> dict[str, RankingSet]:
    """The sets "train", "val" and "test" of a data set of the `CATALOGUE`.

    The number of features is that of the training file unless given. `train`, `val`, `test` are the paths of `files`,
    where `val` may be missing (20% of the training queries, by `seed`) and `test` too (no such set). `reader` are
    options of `read_letor`; they go before those of the catalogue. `download` fetches what has a stable link.

    >>> load_splits("mq2008", root="nowhere", fold=6)
    Traceback (most recent call last):
    ValueError: data.fold=6: mq2008 has the folds 1 to 5
    """
    entry = find_entry(name, subset)
    if not 1 <= fold <= entry.folds:
        has = f"the folds 1 to {entry.folds}" if entry.folds > 1 else "fold 1 only"
        raise ValueError(f"data.fold={fold}: {name} has {has}")
    given = {"train": train, "val": val, "test": test}
    if name == "files":
        paths = _given_files(root, given)
    elif any(path is not None for path in given.values()):
        raise ValueError(f"data.train, data.val and data.test are for data=files; {name} finds its files by data.root")
    else:
        if download:
            _download(name, entry, root)
        paths = _find_files(name, entry, root, fold)
    options = {**entry.reader, **{key: value for key, value in reader.items() if value is not None}}
    sets = _read(paths, num_features, cache_dir, options)
    return hold_out(sets, entry.held_out, seed)


def hold_out(sets: dict[str, RankingSet], shares: Mapping[str, float], seed: int) -> dict[str, RankingSet]:
    """Take the splits of `shares` that are not in `sets` from the training queries, drawn by `seed`.

    >>> import torch
    >>> lists = RankingSet(torch.ones(10, 2), torch.ones(10), torch.arange(11))
    >>> {name: len(part) for name, part in hold_out({"train": lists}, {"val": 0.2, "test": 0.3}, seed=0).items()}
    {'train': 5, 'val': 2, 'test': 3}
    """
    missing = {split: share for split, share in shares.items() if split not in sets}
    if not missing:
        return sets
    train = sets["train"]
    order = np.random.default_rng(seed).permutation(len(train))
    sizes = [round(share * len(train)) for share in missing.values()]
    if min(sizes) == 0 or sum(sizes) >= len(train):
        raise ValueError(f"{len(train)} training queries are too few to hold out {missing}; give files for these")
    parts = dict(zip([*missing, "train"], np.split(order, np.cumsum(sizes)), strict=True))
    taken = {split: train.subset(np.sort(rows)) for split, rows in parts.items()}
    for split, part in taken.items():
        part.name = split
    return {split: (sets | taken)[split] for split in ("train", "val", "test") if split in sets | taken}


def layout(entry: Entry) -> str:
    """The files that are expected below data.root, one per line.

    >>> print(layout(find_entry("yahoo2")))
      <data.root>/ltrc_yahoo/set2.train.txt
      <data.root>/ltrc_yahoo/set2.valid.txt
      <data.root>/ltrc_yahoo/set2.test.txt
    """
    folder = entry.folders[0].replace("{fold}", f"{{1..{entry.folds}}}")
    names = [names[0] for split, names in entry.files.items()]
    if entry.reader.get("qid") == "file":
        names = [name + end for name in names for end in ("", ".query")]
    return "\n".join(f"  <data.root>/{folder}/{name}".replace("//", "/") for name in names)


def _find_files(name: str, entry: Entry, root: str | Path | None, fold: int) -> dict[str, Path]:
    """The path of each split that has a file; splits that can be held out may be missing."""
    base = Path("." if root is None else root)
    folders = [base / folder.format(fold=fold) for folder in entry.folders]
    found = [folder for folder in folders if _first_file(folder, entry.files["train"])]
    if len(found) > 1:
        raise ValueError(f"{name}: data.root={root} holds {' and '.join(map(str, found))}. Name one of them")
    if not found:
        raise _missing(name, entry, root, folders[0] / entry.files["train"][0])
    paths = {}
    for split, names in entry.files.items():
        path = _first_file(found[0], names)
        if path is not None:
            paths[split] = path
        elif split not in entry.held_out:
            raise _missing(name, entry, root, found[0] / names[0])
    return paths


def _first_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    paths = (folder / (name + ending) for name in names for ending in COMPRESSED)
    return next((path for path in paths if path.is_file()), None)


def _missing(name: str, entry: Entry, root: str | Path | None, path: Path) -> FileNotFoundError:
    link = ", or fetch it with data.download=true" if entry.links else ""
    return FileNotFoundError(
        f"{name}: no file {path}. Get the data set from {entry.page}{link}. The folder should hold\n{layout(entry)}\n"
        f"and is named by data.root=FOLDER (now data.root={root}). Files may be compressed (.gz, .zst)."
    )


def _given_files(root: str | Path | None, given: Mapping[str, str | Path | None]) -> dict[str, Path]:
    if given["train"] is None:
        raise ValueError("data=files needs data.train=FILE; data.val=FILE and data.test=FILE are optional")
    paths = {split: Path("." if root is None else root) / path for split, path in given.items() if path is not None}
    for split, path in paths.items():
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}: data.{split}={given[split]}, relative to data.root={root}")
    return paths


def _read(
    paths: dict[str, Path], num_features: int | None, cache_dir: str | Path | None, options: dict[str, Any]
) -> dict[str, RankingSet]:
    """Training file first: the others have its number of features, and are dense or sparse as it is."""
    sets: dict[str, RankingSet] = {}
    for split, path in paths.items():
        shape: dict[str, Any] = {"num_features": num_features}
        if sets:
            shape = {"num_features": sets["train"].num_features, "sparse": sets["train"].is_sparse}
        sets[split] = cached(path, read_letor, {**options, **shape}, cache_dir=cache_dir)
        sets[split].name = split
    return sets


def _download(name: str, entry: Entry, root: str | Path | None) -> None:
    if not entry.links:
        raise ValueError(f"data.download: no stable link is known for {name}; get it from {entry.page}")
    if root is None:
        raise ValueError(f"data.download: say with data.root=FOLDER where {name} shall be put")
    fetch(entry.links, root)
