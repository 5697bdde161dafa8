"""The known data sets: finds the files of a fold, or fetches them, reads them and holds out queries."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchrank.data.cache import cached
from torchrank.data.entries import CATALOGUE, Entry
from torchrank.data.letor import DataWarning, read_letor
from torchrank.data.sets import RankingSet
from torchrank.data.sources.download import fetch

COMPRESSED = (".gz", ".zst")


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

    The number of features is the given one, else that of the catalogue, else that of the training file.
    `train`, `val`, `test` are the paths of `files`, where `val` may be missing (20% of the training queries, by `seed`)
    and `test` too (no such set). `reader` are options of `read_letor`; they go before those of the catalogue.
    `download` fetches files that are not there yet and checks those that are. Files of another size than the published
    set get a `DataWarning`.

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
        folders = [Path("." if root is None else root) / folder.format(fold=fold) for folder in entry.folders]
        if download:
            _download(name, entry, root, folders)
        paths = _find_files(name, entry, root, folders)
    options = {**entry.reader, **{key: value for key, value in reader.items() if value is not None}}
    sets = _read(paths, entry.num_features if num_features is None else num_features, cache_dir, options)
    _compare_size(name, entry.num_queries, sets, paths["train"])
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
    found = ", ".join(f"{size} for {split}" for split, size in zip(missing, sizes, strict=True))
    warnings.warn(f"of {len(train)} training queries some are held out: {found}", DataWarning, stacklevel=2)
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


def _find_files(name: str, entry: Entry, root: str | Path | None, folders: list[Path]) -> dict[str, Path]:
    """The path of each split that has a file; splits that can be held out may be missing."""
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
    paths = (folder / (name + ending) for name in names for ending in ("", *COMPRESSED))
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


def _compare_size(name: str, published: int | None, sets: dict[str, RankingSet], train: Path) -> None:
    """Warn when the files hold another number of queries than the data set, by more than 5%."""
    found = sum(map(len, sets.values()))

    def near(size: int | None) -> bool:
        return size is not None and abs(found - size) <= 0.05 * size

    if published is None or near(published):
        return
    alike = "".join(f", as many as {other}" for other, entry in CATALOGUE.items() if near(entry.num_queries))
    warnings.warn(
        f"{name} has {published:,} queries, but {train} and the files of the other splits hold {found:,}{alike}: is "
        "data.root the folder of this data set?",
        DataWarning,
        stacklevel=3,
    )


def _download(name: str, entry: Entry, root: str | Path | None, folders: list[Path]) -> None:
    there = any(_first_file(folder, entry.files["train"]) for folder in folders)
    if not entry.links and not there:
        raise ValueError(f"data.download: no stable link is known for {name}; get it from {entry.page}")
    if root is None and not there:
        raise ValueError(f"data.download: say with data.root=FOLDER where {name} shall be put")
    fetch(entry.links, folders, compressed=COMPRESSED)
