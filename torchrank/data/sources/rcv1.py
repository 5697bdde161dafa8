"""Reuters RCV1-v2 with its topics: one list per topic over all documents of a split, which share one sparse corpus.

The published files: a token file has `.I 2286`, `.W`, then lines of words, for each document. A vector file has one
document per line: `2286  864:0.0497 1523:0.044 ...`, words numbered from 1. A topic file has lines `E11 2286 1`. All
may be compressed.
"""

from __future__ import annotations

import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchrank.data.cache import cached
from torchrank.data.catalogue import COMPRESSED
from torchrank.data.letor.fast import parse
from torchrank.data.letor.files import read_blocks, read_lines
from torchrank.data.letor.form import Form, show
from torchrank.data.letor.store import FeatureStore, seen_before
from torchrank.data.letor.strings import Strings
from torchrank.data.relevance import Judged
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError, DataWarning

PAGE = "http://www.jmlr.org/papers/volume5/lewis04a/lyrl2004_rcv1v2_README.htm"
FOLDERS = ("", "rcv1", "RCV1", "rcv1v2")
FORMS, ENDINGS = ("tokens", "vectors"), ("", *COMPRESSED)
TRAIN, TEST, TOPICS = "lyrl2004_{form}_train.dat", "lyrl2004_{form}_test_pt{part}.dat", "rcv1-v2.topics.qrels"
VECTOR_WORDS = 47_236  # the highest number of a word in the vector files
LARGEST_ID = 2**24  # a document number is read as a float32, which holds smaller integers exactly


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
) -> dict[str, RankingSet]:
    """The official split by time: 23,149 training and 781,265 test documents.

    Lewis, Yang, Rose & Li, "RCV1: a new benchmark collection for text categorization research", JMLR 2004.

    Args:
        root: the folder of the files; by default the current one.
        form: "tokens" for counts of words (transform=singhal turns them into weights), "vectors" for the published
            weights of 47,236 words.
        topics: the names of the topics, in this order; by default all topics of training documents, in alphabetical
            order.
        min_count: occurrences that a word needs in the training file, for form="tokens".
        val_fraction: the share of the training documents, the last ones, for validation.
        test_parts: which of the four test files are read; without any there is no test set.
        cache_dir: where parsed files are cached; by default beside the data.
        fold: 1, since the split is fixed.
        seed: not used, since nothing is random.

    Returns:
        The sets "train", "val" and "test", with one list per topic.
    """
    if form not in FORMS:
        raise ValueError(f"unknown data.form={form!r}: choose one of {', '.join(FORMS)}")
    if fold != 1:
        raise ValueError(f"data.fold of rcv1 must be 1, the official split by time, got {fold}")
    if not 0 <= val_fraction < 1:
        raise ValueError(f"data.val_fraction must be >= 0 and < 1, got {val_fraction}")
    if wrong := [part for part in test_parts if part not in range(4)]:
        raise ValueError(f"data.test_parts must be some of 0, 1, 2, 3, got {wrong[0]!r}")
    base = _folder(root, form)
    judged = read_topics(_find(base, TOPICS, root))
    train = _find(base, TRAIN.format(form=form), root)
    tests = [_find(base, TEST.format(form=form, part=part), root) for part in test_parts]
    options = {"vocabulary": train.name, "min_count": min_count} if form == "tokens" else {"num_features": VECTOR_WORDS}
    read = read_tokens if form == "tokens" else read_vectors
    documents = {"train": cached(train, read, options, cache_dir=cache_dir)}
    if tests:
        sides = [train] if form == "tokens" else []  # whose words are the columns
        documents["test"] = _joined([cached(path, read, options, sides=sides, cache_dir=cache_dir) for path in tests])
    return _sets(_split(documents, val_fraction), judged, topics)


def _folder(root: str | Path | None, form: str) -> Path:
    """The first folder with the training file; the root if there is none, for the message."""
    base = Path("." if root is None else root)
    name = TRAIN.format(form=form)
    there = (base / folder for folder in FOLDERS if any((base / folder / (name + end)).is_file() for end in ENDINGS))
    return next(there, base)


def _find(folder: Path, name: str, root: str | Path | None) -> Path:
    for path in (folder / (name + ending) for ending in ENDINGS):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"rcv1: not found: {folder / name}. Get it from {PAGE} and set data.root=FOLDER (now data.root={root}); it may "
        "be compressed (.gz, .zst). data.form=tokens or vectors and data.test_parts choose the files that are read."
    )


def _joined(parts: list[RankingSet]) -> RankingSet:
    """The documents of several files as those of one."""
    if len(parts) == 1:
        return parts[0]
    x = SparseRows.cat([part.x for part in parts])  # type: ignore[misc]
    ids = np.concatenate([np.asarray(part.document_ids) for part in parts])
    return RankingSet(x, torch.zeros(len(x)), torch.tensor([0, len(x)]), document_ids=ids)


def _split(documents: dict[str, RankingSet], val_fraction: float) -> dict[str, tuple[SparseRows, np.ndarray]]:
    """The rows and numbers of the documents of each set; the last training documents are for validation."""
    x, numbers = _by_number(documents["train"])
    val = int(val_fraction * len(x) + 1e-9)
    sets = {"train": (x[: len(x) - val], numbers[: len(x) - val])}
    if val:
        sets["val"] = (x[len(x) - val :], numbers[len(x) - val :])
    if "test" in documents:
        sets["test"] = _by_number(documents["test"])
    return sets


def _by_number(documents: RankingSet) -> tuple[SparseRows, np.ndarray]:
    """The rows and numbers of documents in the order of their numbers, which is that of time. Copies only if needed."""
    x: SparseRows = documents.x  # type: ignore[assignment]
    numbers = np.asarray(documents.document_ids).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    if (again := np.flatnonzero(np.diff(numbers) == 0)).size:
        raise DataError(f"rcv1: document {numbers[again[0]]} is in two test files: is one a copy of the other?")
    return (x, numbers) if (order[1:] > order[:-1]).all() else (x[torch.from_numpy(order)], numbers)


def _sets(
    documents: dict[str, tuple[SparseRows, np.ndarray]], judged: Topics, wanted: Sequence[str] | None
) -> dict[str, RankingSet]:
    pairs = {name: _rows(judged, numbers) for name, (_, numbers) in documents.items()}
    chosen = _chosen(judged.names, np.bincount(pairs["train"][0], minlength=len(judged.names)), wanted)
    place = np.full(len(judged.names), -1)
    place[chosen] = np.arange(len(chosen))
    sets = {}
    for name, (x, numbers) in documents.items():
        topic, row = pairs[name]
        if bare := len(x) - len(np.unique(row)):
            text = f"{bare} of {len(x)} documents have no topic in {TOPICS}"
            warnings.warn(f"rcv1 {name}: {text}: are the files from the same release?", DataWarning, stacklevel=4)
        kept = place[topic] >= 0
        keys = np.unique(place[topic[kept]] * len(x) + row[kept])  # by topic, then row, without repeated lines
        counts = np.bincount(keys // len(x), minlength=len(chosen))
        sets[name] = RankingSet(
            x,
            Judged.make(keys % len(x), np.ones(len(keys)), counts, len(x)),
            query_ids=[judged.names[number] for number in chosen],
            document_ids=numbers.astype(str),
            name=name,
        )
    return sets


def _rows(judged: Topics, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Topic and row of the pairs whose document is one of the ascending `numbers`."""
    place = np.minimum(np.searchsorted(numbers, judged.document), len(numbers) - 1)
    here = numbers[place] == judged.document
    return judged.topic[here], place[here]


def _chosen(names: list[str], counts: np.ndarray, wanted: Sequence[str] | None) -> np.ndarray:
    """Places in `names` of the topics that get a list; each has a training document."""
    if wanted is None:
        order = sorted(range(len(names)), key=names.__getitem__)
        chosen = [place for place in order if counts[place]]
        if len(chosen) < len(names):
            missing = ", ".join(names[place] for place in order if not counts[place])
            text = f"{len(names) - len(chosen)} of {len(names)} topics have no training document and are left out"
            warnings.warn(f"rcv1: {text}: {missing}.", DataWarning, stacklevel=5)
    else:
        places = {name: place for place, name in enumerate(names)}
        if unknown := [name for name in wanted if name not in places or not counts[places[name]]]:
            known = ", ".join(sorted(name for name in names if counts[places[name]]))
            raise ValueError(f"unknown topic {unknown[0]!r} in data.topics: choose some of {known}")
        if len(set(wanted)) < len(wanted):
            raise ValueError(f"data.topics must be different, got {', '.join(wanted)}")
        chosen = [places[name] for name in wanted]
    if not chosen:
        raise DataError(f"rcv1: no topic of {len(names)} in {TOPICS} is left: set data.topics, or check the files")
    return np.array(chosen)


# ---- the published files --------------------------------------------------------------------------------------------


def read_tokens(path: str | Path, *, vocabulary: str, min_count: int = 2) -> RankingSet:
    """The documents of a token file as counts of words: one list, in the order of the file, with their numbers as ids.

    Args:
        path: the token file.
        vocabulary: the name of the training file beside it, which is read again for every other file so that each can
            be cached by itself. The columns are its words, in alphabetical order.
        min_count: occurrences that a word needs in the training file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.dat"
        >>> _ = path.write_text(".I 7\\n.W\\noil price oil\\n\\n.I 9\\n.W\\nprice\\n")
        >>> lists = read_tokens(path, vocabulary="train.dat")
        >>> lists.x.dense(), list(lists.document_ids)
        (tensor([[2., 1.],
                [0., 1.]]), ['7', '9'])
    """
    path = Path(path)
    places = _vocabulary(path.with_name(vocabulary), min_count)
    counts, columns, ends, ids = array("f"), array("i"), array("q", [0]), array("q")
    for document, words in read_documents(path):
        found = sorted(Counter(places[word] for word in words if word in places).items())
        columns.extend(column for column, _ in found)
        counts.extend(count for _, count in found)
        ends.append(len(columns))
        ids.append(document)
    values, entries, offsets = (torch.from_numpy(np.array(part)) for part in (counts, columns, ends))
    x = SparseRows(values, entries, offsets, len(places))
    return _one_list(x, np.array(ids), path)


def _vocabulary(path: Path, min_count: int) -> dict[bytes, int]:
    counts: Counter[bytes] = Counter()
    for _, words in read_documents(path):
        counts.update(words)
    words = sorted(word for word, count in counts.items() if count >= min_count)
    if not words:
        raise DataError(f"{path}: none of {len(counts)} words occurs {min_count} times: lower data.min_count")
    return {word: place for place, word in enumerate(words)}


def read_documents(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """The number and the words of each document of a token file; a line that does not fit is refused."""
    lines: dict[int, int] = {}  # the first line of each document
    document = -1
    words: list[bytes] | None = None
    for number, line in read_lines(path):
        if line.startswith(b".I"):
            if document >= 0:
                yield document, _written(words, document, f"{path}, line {number}")
            words, document = None, _number(line[2:].strip(), f"{path}, line {number}")
            if document in lines:
                raise DataError(f"{path}, line {number}: document {document} is in line {lines[document]} already")
            lines[document] = number
        elif line == b".W" and document >= 0 and words is None:
            words = []
        elif line and words is not None and line != b".W":
            words += line.split()
        elif line:
            raise DataError(f"{path}, line {number}: expected '.I <number>' and one '.W' before {show(line)}")
    if document < 0:
        raise DataError(f"{path}: the file has no document, expected lines '.I <number>', '.W' and words")
    yield document, _written(words, document, f"{path}, at its end")


def _written(words: list[bytes] | None, document: int, where: str) -> list[bytes]:
    if words is None:
        raise DataError(f"{where}: document {document} has no line '.W': the file is truncated, get it again")
    return words


def read_vectors(path: str | Path, *, num_features: int) -> RankingSet:
    """The documents of a vector file: one list, in the order of the file. Column j is the word of number j + 1."""
    path = Path(path)
    features, ids, form = FeatureStore(num_features, sparse=True), [], Form("file", num_features)
    for block in read_blocks(path):
        rows = parse(block.text, form, str(path), block.first_line)
        features.add(rows, block.share)
        ids.append(rows.labels.astype(np.int64))
        wrong = np.flatnonzero((rows.labels != ids[-1]) | (ids[-1] < 0) | (ids[-1] >= LARGEST_ID))
        if len(wrong):
            line = [n for n, text in enumerate(block.text.split(b"\n"), block.first_line) if text.strip()][wrong[0]]
            found = f"{rows.labels[wrong[0]]:g}"
            raise DataError(f"{path}, line {line}: expected a document number below {LARGEST_ID}, found {found}")
    if not features.num_rows:
        raise DataError(f"{path}: the file has no document, expected lines like '2286  864:0.0497 1523:0.044'")
    documents = np.concatenate(ids)
    again = documents[seen_before(documents)]
    if len(again):
        document = int(again[0])
        places = [n for n, line in read_lines(path) if line.split(None, 1)[:1] == [b"%d" % document]]
        raise DataError(f"{path}, line {places[1]}: document {document} is in line {places[0]} already")
    x: SparseRows = features.finish()  # type: ignore[assignment]
    return _one_list(x, documents, path)


def _one_list(x: SparseRows, documents: np.ndarray, path: Path) -> RankingSet:
    ids = Strings.join(b"%d" % number for number in documents.tolist())
    return RankingSet(x, torch.zeros(len(x)), torch.tensor([0, len(x)]), document_ids=ids, name=path.name)


class Topics(NamedTuple):
    """Pairs of a topic and a document that has it."""

    names: list[str]
    topic: np.ndarray  # (J,) place in `names`
    document: np.ndarray  # (J,) number


def read_topics(path: Path) -> Topics:
    """The pairs of a topic file; lines with 0 instead of 1 do not count."""
    names: dict[bytes, int] = {}
    topic, document = array("q"), array("q")
    for number, line in read_lines(path):
        cells = line.split()
        if cells and (len(cells) != 3 or cells[2] not in (b"0", b"1")):
            raise DataError(
                f"{path}, line {number}: {show(line)}: expected a topic, a document and 1, such as 'E11 2286 1'"
            )
        if cells:
            place, found = names.setdefault(cells[0], len(names)), _number(cells[1], f"{path}, line {number}")
            if cells[2] == b"1":
                topic.append(place)
                document.append(found)
    return Topics([name.decode(errors="backslashreplace") for name in names], np.array(topic), np.array(document))


def _number(token: bytes, where: str) -> int:
    if not token.isdigit() or len(token) > 9 or int(token) >= LARGEST_ID:
        raise DataError(f"{where}: document {show(token)}: expected an integer below {LARGEST_ID}")
    return int(token)
