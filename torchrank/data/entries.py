"""The entries of the catalogue: where the files of the known data sets lie, how they are read, where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torchrank.data.sources.download import Link

NONE: Mapping[str, Any] = MappingProxyType({})
LETOR_FILES = MappingProxyType(
    {
        "train": ("train.txt", "trainingset.txt"),
        "val": ("vali.txt", "validationset.txt"),
        "test": ("test.txt", "testset.txt"),
    }
)


class Entry(NamedTuple):
    """One data set. A split without a file is held out from the training queries if `held_out` gives its share."""

    page: str  # public page to get it from
    folders: tuple[str, ...] = ("",)  # where the files may lie below data.root; {fold} is the fold's number
    files: Mapping[str, tuple[str, ...]] = LETOR_FILES  # names that each split may have
    folds: int = 1
    num_features: int | None = None  # None: that of the training file
    num_queries: int | None = None  # published number, over the three parts of a fold; other files get a warning
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


def _folds(page: str, *folders: str, **known: Any) -> Entry:
    """Five folds: one of `folders` holds Fold1 .. Fold5."""
    below = tuple(f"{folder}/Fold{{fold}}".removeprefix("/") for folder in folders)
    return Entry(page, below, folds=5, **known)


def _mslr(folder: str, num_queries: int) -> Entry:
    page = "https://www.microsoft.com/en-us/research/project/mslr/"
    return _folds(page, folder, "", num_queries=num_queries, max_label=4, letor_threshold=2)


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
    "mslr10k": _mslr("MSLR-WEB10K", 10_000),
    "mslr30k": _mslr("MSLR-WEB30K", 31_531),
    "mq2007": _folds(f"{LETOR_PAGE}/letor-4-0/", "MQ2007", "", num_queries=1_692, max_label=2),
    "mq2008": _folds(f"{LETOR_PAGE}/letor-4-0/", "MQ2008", "", num_queries=784, max_label=2),
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
        num_features=700,
        max_label=4,
    ),
    "yahoo2": Entry(
        page=YAHOO,
        folders=("ltrc_yahoo", ""),
        files={"train": ("set2.train.txt",), "val": ("set2.valid.txt",), "test": ("set2.test.txt",)},
        num_features=700,
        max_label=4,
    ),
    # Istella-S comes with a validation part, the full set without. Features hold 1.797e308 for "none", read as 0.
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
}
