"""The known data sets: where their files are and how they are read. Finds or fetches files, and holds out queries."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from torchrank.data.cache import cached
from torchrank.data.letor import read_letor, side_files
from torchrank.data.letor.files import check_width
from torchrank.data.sets import RankingSet
from torchrank.data.sources.download import Link, fetch
from torchrank.data.sources.names import folder_of
from torchrank.errors import DataError, DataWarning

COMPRESSED = (".gz", ".zst")
NONE: Mapping[str, Any] = MappingProxyType({})
LETOR_FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train.txt", "trainingset.txt"),
    "val": ("vali.txt", "validationset.txt"),
    "test": ("test.txt", "testset.txt"),
}


class Entry(NamedTuple):
    """One data set. A split without a file is held out from the training queries if `held_out` gives its share."""

    page: str  # public page to get it from
    folders: tuple[str, ...] = ("",)  # where the files may be below data.root; {fold} is the number of the fold
    files: Mapping[str, tuple[str, ...]] = LETOR_FILES  # the possible file names of each split
    folds: int = 1
    num_features: int | None = None  # None: that of the training file
    num_queries: int | None = None  # published number, over the three parts of a fold; other numbers get a warning
    max_label: int | None = None  # the highest grade; None: not known
    relevant_from: int = 1  # the lowest grade that the LETOR tools count as relevant
    reader: Mapping[str, Any] = NONE  # options of read_letor
    held_out: Mapping[str, float] = NONE
    links: tuple[Link, ...] = ()
    subsets: Mapping[str, Entry] = NONE


LETOR_PAGE = "https://www.microsoft.com/en-us/research/project/letor-learning-rank-information-retrieval"
LIGHTGBM = "https://raw.githubusercontent.com/microsoft/LightGBM/v4.6.0/examples/lambdarank"


def _lightgbm(path: str, sha256: str, size: int) -> Link:
    return Link(path, f"{LIGHTGBM}/{path}", sha256, size)


def _folds(page: str, *folders: str, **known: Any) -> Entry:
    """Five folds: one of `folders` holds Fold1 .. Fold5."""
    below = tuple(f"{folder}/Fold{{fold}}".removeprefix("/") for folder in folders)
    return Entry(page, below, folds=5, **known)


def _mslr(folder: str, num_queries: int) -> Entry:
    page = "https://www.microsoft.com/en-us/research/project/mslr/"
    return _folds(page, folder, "", num_queries=num_queries, max_label=4, relevant_from=2)


def _gov(kind: str, year: int) -> Entry:
    """A set of LETOR 3.0's .gov collection: binary labels, features normalised by query."""
    folder = f"{year}_{kind}_dataset"
    folders = (f"Gov/QueryLevelNorm/{folder}", f"QueryLevelNorm/{folder}", folder, f"{kind.upper()}{year}")
    return _folds(f"{LETOR_PAGE}/letor-3-0/", *folders, max_label=1)


def _yahoo(part: str) -> Entry:
    page = "https://webscope.sandbox.yahoo.com/catalog.php?datatype=c (C14B, Learning to Rank Challenge)"
    files = {"train": (f"{part}.train.txt",), "val": (f"{part}.valid.txt",), "test": (f"{part}.test.txt",)}
    return Entry(page, ("ltrc_yahoo", ""), files, num_features=700, max_label=4)


OHSUMED = _folds(
    f"{LETOR_PAGE}/letor-3-0/", "OHSUMED/QueryLevelNorm", "QueryLevelNorm", "OHSUMED", "OHSUMED/Data", "", max_label=2
)

CATALOGUE: dict[str, Entry] = {
    "mslr10k": _mslr("MSLR-WEB10K", 10_000),
    "mslr30k": _mslr("MSLR-WEB30K", 31_531),
    "mq2007": _folds(f"{LETOR_PAGE}/letor-4-0/", "MQ2007", "", num_queries=1_692, max_label=2),
    "mq2008": _folds(f"{LETOR_PAGE}/letor-4-0/", "MQ2008", "", num_queries=784, max_label=2),
    "letor3": Entry(
        page=f"{LETOR_PAGE}/letor-3-0/",
        folds=5,
        subsets={
            **{f"{kind}{year}": _gov(kind, year) for kind in ("td", "hp", "np") for year in (2003, 2004)},
            "ohsumed": OHSUMED,
        },
    ),
    "ohsumed": OHSUMED,
    "yahoo1": _yahoo("set1"),
    "yahoo2": _yahoo("set2"),
    # Istella-S has a validation part, the full set has none. A value of 1.797e308 means "none" and is read as 0.
    "istella": Entry(
        page="http://quickrank.isti.cnr.it/istella-dataset/",
        folders=("sample", "istella-s-letor/sample", "full", "istella-letor/full", ""),
        max_label=4,
        reader={"sentinel": 0},
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
    "folds": Entry(page="", folders=("Fold{fold}",)),
}


def find_entry(name: str, subset: str | None = None) -> Entry:
    """The entry of a data set, or of one of its subsets if it has some (`letor3`).

    Example:
        >>> find_entry("letor3", "td2003").max_label, find_entry("mslr30k").relevant_from
        (1, 2)
    """
    if name not in CATALOGUE:
        raise ValueError(f"unknown data.name={name!r}: choose one of {', '.join(CATALOGUE)}")
    entry = CATALOGUE[name]
    if entry.subsets and subset not in entry.subsets:
        raise ValueError(f"unknown data.subset={subset!r} of {name}: choose one of {', '.join(entry.subsets)}")
    if not entry.subsets and subset is not None:
        raise ValueError(f"{name} has no subsets, got data.subset={subset}")
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

    A number of queries that differs from the published one gets a `DataWarning`.

    Args:
        name: the data set.
        root: the folder of the data set; by default the current one.
        fold: the fold, from 1.
        subset: the part of a collection (`letor3`).
        seed: draws the queries that are held out where a split has no file.
        train: the training file of data=files.
        val: its validation file; by default 20% of the training queries are held out.
        test: its test file; by default there is no such set.
        num_features: by default that of the catalogue, otherwise that of the training file.
        download: fetch the files that are missing, and check those that are there.
        cache_dir: where parsed files are cached; by default beside the data.
        reader: options of `read_letor`; they take precedence over those of the catalogue.

    Example:
        >>> load_splits("mq2008", root="nowhere", fold=6)
        Traceback (most recent call last):
        ValueError: data.fold of mq2008 must be one of 1..5, got 6
    """
    entry = find_entry(name, subset)
    if name == "folds":
        entry = entry._replace(folds=_count_folds(root))
    if not 1 <= fold <= entry.folds:
        has = f"one of 1..{entry.folds}" if entry.folds > 1 else "1"
        raise ValueError(f"data.fold of {name} must be {has}, got {fold}")
    given = {"train": train, "val": val, "test": test}
    if name == "files":
        paths = given_files(name, root, given)
    elif any(path is not None for path in given.values()):
        raise ValueError(f"data.train, data.val and data.test are for data=files; set data.root for {name}")
    else:
        folders = [Path("." if root is None else root) / folder.format(fold=fold) for folder in entry.folders]
        if download:
            _download(name, entry, root, folders)
        paths = _find_files(name, entry, root, folders)
    options = {**entry.reader, **{key: value for key, value in reader.items() if value is not None}}
    sets = _read(paths, entry.num_features if num_features is None else num_features, cache_dir, options)
    for lists in sets.values():
        lists.relevant_from, lists.max_label = entry.relevant_from, entry.max_label
    _compare_size(name, entry.num_queries, sets, paths["train"])
    return hold_out(sets, entry.held_out, seed)


def hold_out(sets: dict[str, RankingSet], shares: Mapping[str, float], seed: int) -> dict[str, RankingSet]:
    """The sets, with the splits of `shares` that are missing held out from the training queries, drawn by `seed`.

    Example:
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
        wanted = " and ".join(f"{share:.0%} for {split}" for split, share in missing.items())
        raise DataError(f"{len(train)} training queries are too few to hold out {wanted}: give files for these")
    purposes = {"val": "validation", "test": "testing"}
    found = " and ".join(f"{size} for {purposes[split]}" for split, size in zip(missing, sizes, strict=True))
    found = found.replace(" for", f" of {len(train)} training queries for", 1)
    warnings.warn(f"Holding out {found}.", DataWarning, stacklevel=2)
    parts = dict(zip([*missing, "train"], np.split(order, np.cumsum(sizes)), strict=True))
    taken = {split: train.subset(np.sort(rows)) for split, rows in parts.items()}
    for split, part in taken.items():
        part.name = split
    return {split: (sets | taken)[split] for split in ("train", "val", "test") if split in sets | taken}


def layout(entry: Entry) -> str:
    """The files that are expected below data.root, one per line.

    Example:
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


def _find_files(name: str, entry: Entry, root: str | Path | None, folders: list[Path]) -> dict[str, Path]:
    """The file of each split; a split that can be held out may have none."""
    found = [folder for folder in folders if _first_file(folder, entry.files["train"])]
    if len(found) > 1:
        places = " and ".join(map(str, found))
        raise DataError(f"{name}: data.root={root} contains both {places}: set data.root to one of them")
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


def count_folds(data: Mapping[str, Any]) -> int:
    """The number of folds of a data set, given the options of its data module; 1 if it has none.

    >>> count_folds({"name": "mq2008"}), count_folds({"name": "synthetic"})
    (5, 1)
    """
    if data["name"] not in CATALOGUE:
        return 1
    return _count_folds(data.get("root")) if data["name"] == "folds" else CATALOGUE[data["name"]].folds


def _count_folds(root: str | Path | None) -> int:
    folders = [path for path in Path("." if root is None else root).glob("Fold*") if path.name[4:].isdigit()]
    if not folders:
        made = f"torchrank folds FILE --out {'FOLDER' if root is None else root}"
        raise FileNotFoundError(f"folds: no folder Fold1 in data.root={root}: `{made}` makes it")
    return max(int(path.name[4:]) for path in folders)


def _first_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    paths = (folder / (name + ending) for name in names for ending in ("", *COMPRESSED))
    return next((path for path in paths if path.is_file()), None)


def _missing(name: str, entry: Entry, root: str | Path | None, path: Path) -> FileNotFoundError:
    if not entry.page:
        return FileNotFoundError(f"{name}: not found: {path}. The files should be\n{layout(entry)}")
    link = ", or fetch it with data.download=true" if entry.links else ""
    return FileNotFoundError(
        f"{name}: not found: {path}. Get the data set from {entry.page}{link}. The files should be\n{layout(entry)}\n"
        f"Set data.root=FOLDER (now data.root={root}). Files may be compressed (.gz, .zst)."
    )


def given_files(name: str, root: str | Path | None, given: Mapping[str, str | Path | None]) -> dict[str, Path]:
    """The files that were given for the splits, below `root`; the training file must be among them."""
    if given["train"] is None:
        raise ValueError(f"data={name} needs data.train=FILE; data.val=FILE and data.test=FILE are optional")
    paths = {split: Path("." if root is None else root) / path for split, path in given.items() if path is not None}
    for split, path in paths.items():
        if not path.is_file():
            place = f"data.{split}={given[split]}, relative to {folder_of(root)}"
            raise FileNotFoundError(f"not found: {path} ({place})")
    return paths


def _read(
    paths: dict[str, Path], num_features: int | None, cache_dir: str | Path | None, options: dict[str, Any]
) -> dict[str, RankingSet]:
    """Read the training file first: the others get its number of features, and are dense or sparse as it is."""
    sets: dict[str, RankingSet] = {}
    for split, path in paths.items():
        shape: dict[str, Any] = {"num_features": num_features}
        if sets:
            shape = {"num_features": sets["train"].num_features, "sparse": sets["train"].is_sparse}
        sides = side_files(path, options)
        sets[split] = cached(path, read_letor, {**options, **shape}, sides=sides, cache_dir=cache_dir)
        check_width(path, sets[split].num_features, shape["num_features"])
        sets[split].name = split
    return sets


def _compare_size(name: str, published: int | None, sets: dict[str, RankingSet], train: Path) -> None:
    """Warn if the number of queries differs from the published one by more than 5%."""
    found = sum(map(len, sets.values()))

    def near(size: int | None) -> bool:
        return size is not None and abs(found - size) <= 0.05 * size

    if published is None or near(published):
        return
    alike = "".join(f", as many as {other}" for other, entry in CATALOGUE.items() if near(entry.num_queries))
    warnings.warn(
        f"{name} has {published:,} queries, but {train} and the files of the other splits have {found:,}{alike}: is "
        "data.root the folder of this data set?",
        DataWarning,
        stacklevel=3,
    )


def _download(name: str, entry: Entry, root: str | Path | None, folders: list[Path]) -> None:
    there = any(_first_file(folder, entry.files["train"]) for folder in folders)
    if not entry.links and not there:
        raise ValueError(f"data.download: no stable link is known for {name}: get it from {entry.page}")
    if root is None and not there:
        raise ValueError(f"data.download: set data.root=FOLDER, the folder for {name}")
    fetch(entry.links, folders, compressed=COMPRESSED)
