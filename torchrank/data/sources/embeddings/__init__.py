"""Vectors of queries and documents with judgements: a folder in BEIR's layout, with the vectors beside the texts.

    corpus.jsonl   {"_id": "d1", "title": ..., "text": ...}     corpus.npy    a vector for each line
    queries.jsonl  {"_id": "q1", "text": ...}                   queries.npy
    qrels/         train.tsv, dev.tsv, test.tsv: query id, document id, grade

Vectors are `.npy` or `.safetensors`, float16, float32 or float64, and mapped: only what is used is read. A file
`corpus.ids` with one id per line may stand in for `corpus.jsonl`; beside it, it tells which vector belongs to which id.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.relevance import Judged
from torchrank.data.rows import parts_of
from torchrank.data.sets import RankingSet
from torchrank.data.sources.embeddings.files import CHECKED, SUFFIXES, check_vectors, map_vectors
from torchrank.data.sources.embeddings.texts import listed_ids, read_lines
from torchrank.data.sources.retrieval import random_parts
from torchrank.errors import DataError, DataWarning

HIGHEST = float(np.finfo(np.float32).max)  # grade
SAME = 0.01  # the distance between two vectors of one text, as a share of their length
SPLITS = {"train": ("train",), "val": ("dev", "val", "valid", "validation"), "test": ("test",)}


class Side(NamedTuple):
    """Queries or documents: their ids and vectors."""

    ids: list[str]
    vectors: Tensor  # (n, D)
    place: dict[str, int]  # of each id


def load_embeddings(
    root: str | Path,
    *,
    corpus: str = "corpus",
    queries: str = "queries",
    qrels: str = "qrels",
    threshold: float | None = None,
    fold: int = 1,
    seed: int = 0,
    test_fraction: float = 0.2,
    val_fraction: float = 0.2,
    drop_same_id: bool = False,
) -> dict[str, RankingSet]:
    """Queries that rank a whole corpus by vectors; documents without a judgement are not relevant.

    Args:
        root: the folder.
        corpus: name of the files of the documents: `corpus.jsonl` or `corpus.ids`, and `corpus.npy` or
            `corpus.safetensors`.
        queries: the same for the queries.
        qrels: a folder of tsv files, which are the splits (train, dev or val, test); or one file, tsv or TREC's form,
            whose queries are divided at random. Without a dev part it is drawn from the training queries.
        threshold: grades of at least this count as 1 and all others as 0; None keeps the grades.
        fold: the number of the random division, 1, 2, ...
        seed: draws the divisions.
        test_fraction: the share of the queries for testing, where they are divided at random.
        val_fraction: the share of the other queries for validation.
        drop_same_id: a document with the id of a query is this query itself, which does not rank it (BEIR measures so;
            it matters for ArguAna and Quora).

    Returns:
        The sets "train", "val" and "test", those that have queries. Ties rank by document id.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, ids in (("corpus", "abc"), ("queries", "xy")):
        ...     np.save(folder / f"{name}.npy", np.eye(3, dtype=np.float32)[: len(ids)])
        ...     _ = (folder / f"{name}.ids").write_text("\\n".join(ids))
        >>> _ = (folder / "qrels.tsv").write_text("x\\tb\\t1\\ny\\tc\\t2\\n")
        >>> sets = load_embeddings(folder, qrels="qrels.tsv", test_fraction=0.5)
        >>> {name: len(lists) for name, lists in sets.items()}
        {'train': 1, 'test': 1}
    """
    if fold < 1:
        raise ValueError(f"data.fold must be >= 1, got {fold}")
    base = Path(root)
    documents, asking = read_side(base, corpus), read_side(base, queries)
    if documents.vectors.shape[1] != asking.vectors.shape[1]:
        found = f"{documents.vectors.shape[1]} numbers, and those of {queries} {asking.vectors.shape[1]}"
        raise DataError(f"{base}: vectors of {corpus} have {found}: they must come from the same model")
    same = {place: documents.place[each] for place, each in enumerate(asking.ids) if each in documents.place}
    own = same if drop_same_id else {}
    if not drop_same_id:
        _tell_same(base, same, asking, documents)
    parts = _parts(base / qrels, asking, documents, threshold, own)
    rng = np.random.default_rng((seed, fold))
    if set(parts) == {""}:
        parts = _divided(parts[""], random_parts(len(parts[""]), rng, test_fraction, val_fraction))
    elif "val" not in parts and "train" in parts and val_fraction:
        drawn = random_parts(len(parts["train"]), rng, val_fraction, 0.0)
        parts |= _divided(parts["train"], {"train": drawn["train"], "val": drawn["test"]})
    return {name: _set(name, parts[name], documents, asking, own) for name in SPLITS if parts.get(name)}


Judgements = dict[int, dict[int, float]]  # query -> document -> grade
Own = dict[int, int]  # query -> the document that is this query itself


def read_side(base: Path, name: str) -> Side:
    """Ids and vectors of the documents or of the queries, which must fit together."""
    source, vectors = _vectors(base, name)
    texts, listed = base / f"{name}.jsonl", base / f"{name}.ids"
    if not texts.is_file() and not listed.is_file():
        raise FileNotFoundError(f"embeddings: neither {texts.name} nor {listed.name} found in {base}")
    ids = listed_ids(listed) if listed.is_file() else list(_text_ids(texts))
    where = listed if listed.is_file() else texts
    place = {each: number for number, each in enumerate(ids)}
    if len(place) < len(ids):
        again = next(each for number, each in enumerate(ids) if place[each] != number)
        raise DataError(f"{where}: the id {again!r} occurs twice, expected different ids")
    if len(ids) != len(vectors):
        raise DataError(
            f"{source}: {len(vectors)} vectors for the {len(ids)} ids of {where.name}: embed all texts again"
        )
    if listed.is_file() and texts.is_file() and (lost := set(ids).symmetric_difference(_text_ids(texts))):
        raise DataError(f"{listed}: its ids are not those of {texts.name}: {sorted(lost)[0]!r} is in one of them only")
    return Side(ids, vectors, place)


def _vectors(base: Path, name: str) -> tuple[Path, Tensor]:
    """The file of the vectors, and what is in it."""
    if not base.is_dir():
        raise FileNotFoundError(f"embeddings: not found: the folder {base}. Set data.root")
    paths = [path for suffix in SUFFIXES if (path := base / f"{name}{suffix}").is_file()]
    if not paths:
        raise FileNotFoundError(
            f"embeddings: neither {name}.npy nor {name}.safetensors found in {base}. `torchrank embed {base} --model "
            "PATH` makes them from the texts"
        )
    if len(paths) > 1:
        raise DataError(f"{base}: has both {name}.npy and {name}.safetensors: move one of them away")
    path, vectors = paths[0], map_vectors(paths[0])
    check_vectors(vectors, f"{path}: row", "is not finite: embed this text again")
    if empty := [row for start, part in parts_of(vectors) for row in (start + _zeros(part)).tolist()]:
        told = f"{len(empty)} of {len(vectors)} vectors are zeros, the first in row {empty[0]}"
        warnings.warn(f"{path}: {told}: their cosine is 0", DataWarning, stacklevel=5)
    return path, vectors


def _zeros(rows: Tensor) -> Tensor:
    """The places of vectors of zeros."""
    return (rows == 0).all(1).nonzero().flatten()


def _text_ids(path: Path) -> Iterator[str]:
    for number, line in read_lines(path):
        yield str(_field(line, "_id", f"{path}, line {number}"))


def _field(line: str, name: str, where: str) -> object:
    try:
        return json.loads(line)[name]
    except (ValueError, KeyError, TypeError):
        raise DataError(f'{where}: expected a JSON object with "{name}"') from None


def _tell_same(base: Path, same: Own, asking: Side, documents: Side) -> None:
    """Warn of queries that are documents themselves: equal ids alone may mean nothing."""
    found: list[int] = []
    for some in torch.tensor(list(same.items()), dtype=torch.int64).view(-1, 2).split(CHECKED):
        ours, theirs = asking.vectors[some[:, 0]].double(), documents.vectors[some[:, 1]].double()
        lengths = theirs.norm(dim=1)
        near = ((ours - theirs).norm(dim=1) <= SAME * lengths) & (lengths > 0)
        found += some[near, 0].tolist()
    if found:
        told = (
            f"{len(found)} queries have the id and nearly the vector of a document, the first {asking.ids[found[0]]!r}"
        )
        advice = "if they are the same texts, data.drop_same_id=true leaves this document out of the list of its query"
        warnings.warn(f"{base}: {told}: {advice}", DataWarning, stacklevel=3)


# ---- judgements -------------------------------------------------------------------------------------------------


def _parts(path: Path, asking: Side, documents: Side, threshold: float | None, own: Own) -> dict[str, Judgements]:
    """The judgements of each split; those of one file under the name ''."""
    if path.is_file():
        return {"": _judgements(path, asking, documents, threshold, own)}
    files = sorted(path.glob("*.tsv"))
    if not files:
        raise FileNotFoundError(f"embeddings: not found: {path}, a file of judgements or a folder of tsv files")
    found = {name: [each for each in files if each.stem in stems] for name, stems in SPLITS.items()}
    for name, several in found.items():
        if len(several) > 1:
            told = " and ".join(each.name for each in several)
            raise DataError(f"{path}: {told} are two files of the {name} queries: move one of them away")
    named = {name: several[0] for name, several in found.items() if several}
    if not named and len(files) == 1:
        return {"": _judgements(files[0], asking, documents, threshold, own)}
    if "train" not in named:
        there, first = ", ".join(each.name for each in files), f"{path.name}/{files[0].name}"
        raise DataError(
            f"{path}: no train.tsv among {there}: data.qrels={first} divides the queries of this file at random"
        )
    if others := [each.name for each in files if each not in named.values()]:
        told = f"not read: {', '.join(others)}, as only train.tsv, dev.tsv and test.tsv are splits"
        warnings.warn(f"{path}: {told}", DataWarning, stacklevel=3)
    parts = {name: _judgements(each, asking, documents, threshold, own) for name, each in named.items()}
    for one, other in combinations(parts, 2):
        if shared := parts[one].keys() & parts[other].keys():
            told = f"{len(shared)} queries are in {named[one].name} and in {named[other].name}"
            warnings.warn(f"{path}: {told}: what is measured on them may be too good", DataWarning, stacklevel=3)
    return parts


def _judgements(path: Path, asking: Side, documents: Side, threshold: float | None, own: Own) -> Judgements:
    found: Judgements = {}
    lost: dict[str, list[str]] = {"unknown queries": [], "unknown documents": [], "queries for themselves": []}
    for number, query, document, grade in _lines(path):
        if query not in asking.place:
            lost["unknown queries"].append(f"line {number}: {query!r}")
        elif document not in documents.place:
            lost["unknown documents"].append(f"line {number}: {document!r}")
        elif own.get(asking.place[query]) == documents.place[document]:
            lost["queries for themselves"].append(f"line {number}: {query!r}")
        else:
            grades = found.setdefault(asking.place[query], {})
            row = documents.place[document]
            if grades.setdefault(row, grade) != grade:
                told = f"document {document!r} has another grade for query {query!r} before"
                raise DataError(f"{path}, line {number}: {told}")
    for what, places in lost.items():
        if places:
            told = f"{len(places)} judgements of {what} do not count, the first in {places[0]}"
            warnings.warn(f"{path}: {told}", DataWarning, stacklevel=4)
    return _with_relevant(path, found, threshold)


def _lines(path: Path) -> Iterator[tuple[int, str, str, float]]:
    """Number, query, document and grade of each line: three cells as in BEIR, or four as in TREC."""
    for place, (number, line) in enumerate(read_lines(path)):
        cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
        if place == 0 and cells[0].lower().replace("_", "-") == "query-id":
            continue
        if len(cells) not in (3, 4):
            raise DataError(f"{path}, line {number}: {len(cells)} cells, expected query, document and grade")
        yield number, cells[0], cells[-2], _grade(cells[-1], f"{path}, line {number}")


def _grade(cell: str, where: str) -> float:
    try:
        grade = float(cell)
    except ValueError:
        grade = math.nan
    if not abs(grade) <= HIGHEST:
        raise DataError(f"{where}: the grade {cell!r} is not a number, or too large")
    return grade


def _with_relevant(path: Path, found: Judgements, threshold: float | None) -> Judgements:
    """Queries with a relevant document, and all their judged documents; negative grades count as 0."""

    def grade_of(grade: float) -> float:
        return max(grade, 0.0) if threshold is None else float(grade >= threshold)

    kept = {query: {row: grade_of(grade) for row, grade in grades.items()} for query, grades in found.items()}
    with_some = {query: kept[query] for query in sorted(kept) if any(kept[query].values())}
    if not with_some:
        raise DataError(f"{path}: no query of the folder has a relevant document in it")
    if lost := len(kept) - len(with_some):
        warnings.warn(
            f"{path}: {lost} of {len(kept)} queries have no relevant document and are left out",
            DataWarning,
            stacklevel=5,
        )
    return with_some


def _divided(judged: Judgements, places: dict[str, np.ndarray]) -> dict[str, Judgements]:
    queries = list(judged)
    return {name: {queries[place]: judged[queries[place]] for place in some} for name, some in places.items()}


def _set(name: str, judged: Judgements, documents: Side, asking: Side, own: Own) -> RankingSet:
    queries = np.array(list(judged))
    counts = np.array([len(grades) for grades in judged.values()])
    pairs = [pair for grades in judged.values() for pair in sorted(grades.items())]
    rows, grades = (np.array(column) for column in zip(*pairs, strict=True))
    num_rows = len(documents.ids)
    rows_of_queries = torch.tensor([own.get(query, num_rows) for query in judged])
    return RankingSet(
        documents.vectors,
        Judged.make(rows, grades, counts, num_rows, rows_of_queries),
        queries=asking.vectors[queries],
        query_ids=[asking.ids[query] for query in queries],
        document_ids=documents.ids,
        name=name,
    )
