"""Reuters RCV1-v2 with its topics: one list per topic over all documents of a split, which share one sparse corpus."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from torchrank.data.cache import cached
from torchrank.data.catalogue import COMPRESSED
from torchrank.data.corpus import CorpusSet, Judged
from torchrank.data.letor import DataWarning
from torchrank.data.sets import RankingSet
from torchrank.data.sources.rcv1_files import Topics, read_tokens, read_topics, read_vectors
from torchrank.data.sparse import SparseRows

PAGE = "http://www.jmlr.org/papers/volume5/lewis04a/lyrl2004_rcv1v2_README.htm"
FOLDERS = ("", "rcv1", "RCV1", "rcv1v2")
FORMS, ENDINGS = ("tokens", "vectors"), ("", *COMPRESSED)
TRAIN, TEST, TOPICS = "lyrl2004_{form}_train.dat", "lyrl2004_{form}_test_pt{part}.dat", "rcv1-v2.topics.qrels"
VECTOR_WORDS = 47_236  # numbers of the words in the vector files


def load_rcv1(
    *,
    root: str | Path | None = None,
    form: str = "tokens",
    topics: Sequence[str] | None = None,
    min_count: int = 2,
    val_fraction: float = 0.2,
    test_parts: Sequence[int] = (0, 1, 2, 3),
    cache_dir: str | Path | None = None,
    fold: int = 1,
    seed: int = 0,
) -> dict[str, CorpusSet]:
    """The official split by time: 23,149 documents to train, the last `val_fraction` of them to validate, 781,265 to
    test. Lewis, Yang, Rose & Li, "RCV1: a new benchmark collection for text categorization research", JMLR 2004.

    form: "tokens" gives counts of the words that occur `min_count` times in the training file (with transform=singhal
        they become weights), "vectors" the published weights of 47,236 words.
    topics: their names, in this order; without them all that a training document has, in alphabetical order.
    test_parts: which of the four test files are read; none leaves the test set out.

    The split is fixed: there is one fold, and `seed` draws nothing.
    """
    if form not in FORMS:
        raise ValueError(f"unknown data.form={form!r}: choose {' or '.join(FORMS)}")
    if fold != 1:
        raise ValueError(f"data.fold={fold}: rcv1 has one split, the official one by time; use fold 1")
    if not 0 <= val_fraction < 1:
        raise ValueError(f"data.val_fraction={val_fraction} must be at least 0 and below 1")
    if wrong := [part for part in test_parts if part not in range(4)]:
        raise ValueError(f"data.test_parts holds {wrong[0]!r}: the test files are numbered 0, 1, 2, 3")
    base = _folder(root, form)
    judged = read_topics(_find(base, TOPICS, root))
    train = _find(base, TRAIN.format(form=form), root)
    tests = [_find(base, TEST.format(form=form, part=part), root) for part in test_parts]
    options = {"vocabulary": train.name, "min_count": min_count} if form == "tokens" else {"num_features": VECTOR_WORDS}
    read = read_tokens if form == "tokens" else read_vectors
    documents = {"train": cached(train, read, options, cache_dir=cache_dir)}
    if tests:
        documents["test"] = _joined([cached(path, read, options, cache_dir=cache_dir) for path in tests])
    return _sets(_split(documents, val_fraction), judged, topics)


def _folder(root: str | Path | None, form: str) -> Path:
    """The first folder with the training file, or the root for the message that it is missing."""
    base = Path("." if root is None else root)
    name = TRAIN.format(form=form)
    there = (base / folder for folder in FOLDERS if any((base / folder / (name + end)).is_file() for end in ENDINGS))
    return next(there, base)


def _find(folder: Path, name: str, root: str | Path | None) -> Path:
    for path in (folder / (name + ending) for ending in ENDINGS):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"rcv1: no file {folder / name}. Get it from {PAGE} and say data.root=FOLDER (now data.root={root}); it may be "
        "compressed (.gz, .zst). data.form=tokens or vectors says which documents are read, data.test_parts which of "
        "the test files"
    )


def _joined(parts: list[RankingSet]) -> RankingSet:
    """The documents of several files as those of one."""
    if len(parts) == 1:
        return parts[0]
    x = SparseRows.cat([part.x for part in parts])  # type: ignore[misc]
    ids = np.concatenate([np.asarray(part.document_ids) for part in parts])
    return RankingSet(x, torch.zeros(len(x)), torch.tensor([0, len(x)]), document_ids=ids)


def _split(documents: dict[str, RankingSet], val_fraction: float) -> dict[str, tuple[SparseRows, np.ndarray]]:
    """Rows and numbers of the documents of each set; the last of the training documents are for validation."""
    x, numbers = _by_number(documents["train"])
    val = int(val_fraction * len(x) + 1e-9)
    sets = {"train": (x[: len(x) - val], numbers[: len(x) - val])}
    if val:
        sets["val"] = (x[len(x) - val :], numbers[len(x) - val :])
    if "test" in documents:
        sets["test"] = _by_number(documents["test"])
    return sets


def _by_number(documents: RankingSet) -> tuple[SparseRows, np.ndarray]:
    """Documents in the order of their numbers, which is that of time; nothing is copied where they are in order."""
    x: SparseRows = documents.x  # type: ignore[assignment]
    numbers = np.asarray(documents.document_ids).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    if (again := np.flatnonzero(np.diff(numbers) == 0)).size:
        raise ValueError(f"rcv1: document {numbers[again[0]]} is in two test files: is one a copy of the other?")
    return (x, numbers) if (order[1:] > order[:-1]).all() else (x[torch.from_numpy(order)], numbers)


def _sets(
    documents: dict[str, tuple[SparseRows, np.ndarray]], judged: Topics, wanted: Sequence[str] | None
) -> dict[str, CorpusSet]:
    pairs = {name: _rows(judged, numbers) for name, (_, numbers) in documents.items()}
    chosen = _chosen(judged.names, np.bincount(pairs["train"][0], minlength=len(judged.names)), wanted)
    place = np.full(len(judged.names), -1)
    place[chosen] = np.arange(len(chosen))
    sets = {}
    for name, (x, numbers) in documents.items():
        topic, row = pairs[name]
        if bare := len(x) - len(np.unique(row)):
            text = f"{bare} of {len(x)} documents have no topic in {TOPICS}"
            warnings.warn(f"rcv1 {name}: {text}: are the files of one release?", DataWarning, stacklevel=4)
        kept = place[topic] >= 0
        keys = np.unique(place[topic[kept]] * len(x) + row[kept])  # by topic, then row; a line that stands twice is one
        counts = np.bincount(keys // len(x), minlength=len(chosen))
        sets[name] = CorpusSet(
            x,
            None,
            Judged.make(keys % len(x), np.ones(len(keys)), counts),
            query_ids=[judged.names[number] for number in chosen],
            corpus_ids=numbers.astype(str),
            name=name,
        )
    return sets


def _rows(judged: Topics, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Topic and row of the pairs whose document is one of `numbers`, which ascend."""
    place = np.minimum(np.searchsorted(numbers, judged.document), len(numbers) - 1)
    here = numbers[place] == judged.document
    return judged.topic[here], place[here]


def _chosen(names: list[str], counts: np.ndarray, wanted: Sequence[str] | None) -> np.ndarray:
    """Places in `names` of the topics to rank for; each has a training document."""
    if wanted is None:
        order = sorted(range(len(names)), key=names.__getitem__)
        chosen = [place for place in order if counts[place]]
        if len(chosen) < len(names):
            missing = ", ".join(names[place] for place in order if not counts[place])
            text = f"{len(names) - len(chosen)} of {len(names)} topics have no training document and are left out"
            warnings.warn(f"rcv1: {text}: {missing}", DataWarning, stacklevel=5)
    else:
        places = {name: place for place, name in enumerate(names)}
        if unknown := [name for name in wanted if name not in places or not counts[places[name]]]:
            known = ", ".join(sorted(name for name in names if counts[places[name]]))
            raise ValueError(f"data.topics: no training document has the topic {unknown[0]!r}; choose of {known}")
        if len(set(wanted)) < len(wanted):
            raise ValueError(f"data.topics names a topic twice: {', '.join(wanted)}")
        chosen = [places[name] for name in wanted]
    if not chosen:
        raise ValueError(f"rcv1: no topic is left of {len(names)} in {TOPICS}: give data.topics, or the right file")
    return np.array(chosen)
