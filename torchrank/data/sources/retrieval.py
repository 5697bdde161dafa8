"""A corpus, query vectors and relevance lists: who is relevant to whom is given, and need not be mutual."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchrank.data.corpus import CorpusSet, Judged
from torchrank.data.sets import RankingSet
from torchrank.data.sources.tables import read_arrays

SPLITS = ("train", "val", "test")
NAMED = (("query_ids", "queries"), ("corpus_ids", "corpus"))  # arrays of names, and of what they name


class Pairs(NamedTuple):
    """Lists of corpus rows as (query, row, grade) triples, sorted by query; `where` names the source in errors."""

    query: np.ndarray  # (J,)
    row: np.ndarray  # (J,)
    grade: np.ndarray  # (J,)
    where: str


def load_retrieval(
    file: str | Path,
    *,
    root: str | Path | None = None,
    relevant: str | Path | None = None,
    candidates: str | Path | None = None,
    fold: int = 1,
    seed: int = 0,
    test_fraction: float = 0.2,
    val_fraction: float = 0.2,
) -> dict[str, RankingSet]:
    """Queries that rank one corpus, from an npz file below `root` with these arrays:

    - `corpus` (n, D) and `queries` (Q, D);
    - `relevant` (J,) corpus rows and `relevant_offsets` (Q+1,): query q has `relevant[offsets[q]:offsets[q+1]]`;
      with `relevant_grades` (J,) if these are not all 1. Or the text file `relevant` below `root` instead;
    - optional `candidates`, `candidates_offsets` (or the text file): the rows a query ranks; all rows without them;
    - optional `query_rows` (Q,): the corpus row that a query is and does not rank, -1 where it is none;
    - optional `query_ids` (Q,) and `corpus_ids` (n,); optional `split` (Q,) of "train", "val", "test".

    A text file has lines "query document [grade]", by id, or by number from 0 where there are no ids. Without `split`
    queries are split at random, `test_fraction` of all, `val_fraction` of the rest; each `fold` 1, 2, ... anew.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.npz"
    >>> lists = {"relevant": [1, 0, 2], "relevant_offsets": [0, 1, 3, 3], "split": ["train", "train", "test"]}
    >>> np.savez(path, corpus=np.eye(3), queries=np.eye(3), query_rows=[0, 1, -1], **lists)
    >>> train = load_retrieval(path)["train"][:]
    >>> train.index, train.labels
    (tensor([1, 2, 0, 2]), tensor([1., 0., 1., 1.]))
    """
    if fold < 1:
        raise ValueError(f"data.fold={fold} must be at least 1")
    base = Path("." if root is None else root)
    path = base / file
    arrays = _open(path, root)
    own = _own_rows(arrays, path)
    judged = _pairs(arrays, own, "relevant", path, None if relevant is None else base / relevant)
    if candidates is None and "candidates" not in arrays:
        whole: RankingSet = _whole_corpus(arrays, judged, own)
    else:
        chosen = _pairs(arrays, own, "candidates", path, None if candidates is None else base / candidates)
        whole = _listed(arrays, judged, chosen)
    if "split" in arrays:
        parts = _given_parts(arrays["split"], len(whole), path)
    else:
        parts = _random_parts(len(whole), np.random.default_rng((seed, fold)), test_fraction, val_fraction)
    sets = {name: whole.subset(rows) for name, rows in parts.items() if len(rows)}
    for name, part in sets.items():
        part.name = name
    return sets


def _open(path: Path, root: str | Path | None) -> dict[str, np.ndarray]:
    """The arrays of the file, corpus and query vectors checked and in float32."""
    if not path.is_file():
        raise FileNotFoundError(f"retrieval: no file {path}. data.file is an npz file below data.root (now {root}).")
    arrays = read_arrays(path)
    for name in ("corpus", "queries"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ValueError(f"{path}: no array {name} with one vector per row; found {', '.join(sorted(arrays))}")
        arrays[name] = arrays[name].astype(np.float32)
        bad = np.argwhere(~np.isfinite(arrays[name]))
        if len(bad):
            raise ValueError(f"{path}: {name}[{bad[0, 0]}, {bad[0, 1]}] is not a finite number; fill it first")
        if len(arrays[name]) == 0:
            raise ValueError(f"{path}: {name} has no rows")
    corpus, queries = arrays["corpus"].shape, arrays["queries"].shape
    if corpus[1] != queries[1]:
        raise ValueError(f"{path}: corpus rows have {corpus[1]} numbers, query vectors {queries[1]}: make them equal")
    for name, count in (("query_ids", queries[0]), ("corpus_ids", corpus[0])):
        if name in arrays and arrays[name].shape != (count,):
            raise ValueError(f"{path}: {name} has shape {arrays[name].shape}, expected ({count},)")
        if name in arrays and len(np.unique(arrays[name])) < count:
            raise ValueError(f"{path}: {name} holds an id twice; ids must be different")
    return arrays


def _own_rows(arrays: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """The corpus row that each query is (Q,); n where it is none."""
    num_queries, num_rows = len(arrays["queries"]), len(arrays["corpus"])
    own = np.asarray(arrays.get("query_rows", np.full(num_queries, -1)))
    if own.shape != (num_queries,) or own.dtype.kind not in "iu":
        raise ValueError(f"{path}: query_rows is {own.dtype} {own.shape}, expected {num_queries} whole numbers")
    wrong = np.flatnonzero((own < -1) | (own >= num_rows))
    if len(wrong):
        limits = f"the corpus has rows 0..{num_rows - 1}, and -1 says that the query is none of them"
        raise ValueError(f"{path}: query_rows[{wrong[0]}] is {own[wrong[0]]}, but {limits}")
    return np.where(own < 0, num_rows, own).astype(np.int64)


def _pairs(arrays: dict[str, np.ndarray], own: np.ndarray, name: str, path: Path, text: Path | None) -> Pairs:
    """Checked lists from the text file if there is one, otherwise from the arrays `name` and `name_offsets`."""
    pairs = _read_arrays(arrays, name, path) if text is None else _read_text(text, arrays)
    _check(pairs, own, arrays)
    return pairs


def _read_arrays(arrays: dict[str, np.ndarray], name: str, path: Path) -> Pairs:
    if name not in arrays or f"{name}_offsets" not in arrays:
        raise ValueError(f"{path}: needs the arrays {name} and {name}_offsets, or data.{name}=<text file>")
    rows, offsets, num_queries = arrays[name], arrays[f"{name}_offsets"], len(arrays["queries"])
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise ValueError(f"{path}: {name} is {rows.dtype} {rows.shape}, expected corpus rows as whole numbers (J,)")
    whole = offsets.shape == (num_queries + 1,) and offsets.dtype.kind in "iu"
    rising = whole and (np.diff(offsets.astype(np.int64)) >= 0).all()
    if not rising or offsets[0] != 0 or offsets[-1] != len(rows):
        expected = f"{num_queries + 1} whole numbers that rise from 0 to {len(rows)}, one more than there are queries"
        raise ValueError(f"{path}: {name}_offsets must be {expected}")
    grades = np.asarray(arrays.get(f"{name}_grades", np.ones(len(rows))), dtype=np.float32)
    if grades.shape != rows.shape:
        raise ValueError(f"{path}: {len(grades)} {name}_grades for {len(rows)} rows")
    return Pairs(np.repeat(np.arange(num_queries), np.diff(offsets)), rows.astype(np.int64), grades, f"{path}: {name}")


def _read_text(path: Path, arrays: dict[str, np.ndarray]) -> Pairs:
    """Lines "query document [grade]"; blank lines are skipped."""
    if not path.is_file():
        raise FileNotFoundError(f'retrieval: no file {path}; it holds lines "query document [grade]"')
    ids = [arrays.get(name, np.arange(len(arrays[part]))) for name, part in NAMED]
    places = [{str(name): place for place, name in enumerate(names.tolist())} for names in ids]
    triples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        cells = line.split()
        if cells:
            triples.append(_triple(cells, places, f"{path}, line {number}"))
    query, row, grade = (np.array(column) for column in zip(*triples, strict=True)) if triples else np.zeros((3, 0))
    order = np.argsort(query, kind="stable")
    return Pairs(query[order].astype(np.int64), row[order].astype(np.int64), grade[order].astype(np.float32), str(path))


def _triple(cells: list[str], places: list[dict[str, int]], where: str) -> tuple[int, int, float]:
    if len(cells) not in (2, 3):
        raise ValueError(f'{where}: {len(cells)} words, expected "query document [grade]"')
    for cell, known, (ids, part) in zip(cells, places, NAMED, strict=False):
        if cell not in known:
            raise ValueError(f"{where}: {cell!r} is none of the {len(known)} {part} (by {ids}, or numbers from 0)")
    try:
        grade = float(cells[2]) if len(cells) == 3 else 1.0
    except ValueError:
        raise ValueError(f"{where}: grade {cells[2]!r} is not a number") from None
    return places[0][cells[0]], places[1][cells[1]], grade


def _check(pairs: Pairs, own: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    """Refuse rows outside of the corpus, the query's own row, a row that stands twice, and grades below 0."""
    num_rows = len(arrays["corpus"])
    keys = pairs.query * (num_rows + 1) + pairs.row
    twice = np.ones(len(keys), dtype=bool)
    twice[np.unique(keys, return_index=True)[1]] = False
    problems = (
        ((pairs.row < 0) | (pairs.row >= num_rows), f"the corpus has rows 0..{num_rows - 1} only"),
        (pairs.row == own[pairs.query], "this is the query itself (query_rows): take it out of its list"),
        (twice, "it stands twice in the list: keep one"),
        (~(pairs.grade >= 0) | np.isinf(pairs.grade), "grades are finite numbers of at least 0"),
    )
    for wrong, reason in problems:
        if wrong.any():
            entry = int(np.flatnonzero(wrong)[0])
            query = int(pairs.query[entry])
            place = f"query {query}, entry {entry - int(np.searchsorted(pairs.query, query))} of its list"
            raise ValueError(f"{pairs.where}, {place}: row {pairs.row[entry]}, grade {pairs.grade[entry]:g}: {reason}")


def _whole_corpus(arrays: dict[str, np.ndarray], judged: Pairs, own: np.ndarray) -> CorpusSet:
    above = judged.grade > 0  # rows that are not listed have grade 0 anyway
    counts = np.bincount(judged.query[above], minlength=len(own))
    return CorpusSet(
        torch.from_numpy(arrays["corpus"]),
        torch.from_numpy(arrays["queries"]),
        Judged.make(judged.row[above], judged.grade[above], counts),
        own=torch.from_numpy(own),
        query_ids=_text(arrays.get("query_ids", np.arange(len(own)))),
        corpus_ids=_text(arrays.get("corpus_ids")),
    )


def _listed(arrays: dict[str, np.ndarray], judged: Pairs, chosen: Pairs) -> RankingSet:
    """Queries that rank their candidates only, in the order of the candidate lists."""
    num_queries, num_rows = len(arrays["queries"]), len(arrays["corpus"])
    keys, wanted = chosen.query * num_rows + chosen.row, judged.query * num_rows + judged.row
    order = np.argsort(wanted)
    lost = ~np.isin(wanted, keys) & (judged.grade > 0)
    if lost.any():
        text = (
            f"{lost.sum()} of {(judged.grade > 0).sum()} relevant documents are not among the candidates of their query"
        )
        warnings.warn(f"{judged.where}: {text}; they are not ranked and do not count", stacklevel=3)
    labels = np.zeros(len(keys), dtype=np.float32)
    relevant = np.isin(keys, wanted)
    labels[relevant] = judged.grade[order][np.searchsorted(wanted, keys[relevant], sorter=order)]
    ids = _text(arrays.get("corpus_ids"))
    offsets = np.concatenate(([0], np.cumsum(np.bincount(chosen.query, minlength=num_queries))))
    return RankingSet(
        torch.from_numpy(arrays["corpus"]),
        torch.from_numpy(labels),
        torch.from_numpy(offsets),
        index=torch.from_numpy(chosen.row),
        queries=torch.from_numpy(arrays["queries"]),
        query_ids=_text(arrays.get("query_ids", np.arange(num_queries))),
        document_ids=None if ids is None else ids[chosen.row],
    )


def _text(ids: np.ndarray | None) -> np.ndarray | None:
    return None if ids is None else ids.astype(str)


def _given_parts(split: np.ndarray, num_queries: int, path: Path) -> dict[str, np.ndarray]:
    wrong = np.flatnonzero(~np.isin(split, SPLITS))
    if split.shape != (num_queries,) or len(wrong):
        found = f"'{split[wrong[0]]}' for query {wrong[0]}" if len(wrong) else f"{split.shape} values"
        raise ValueError(f"{path}: split must say train, val or test for each of {num_queries} queries, found {found}")
    if "train" not in split:
        raise ValueError(f"{path}: split says train for none of {num_queries} queries")
    return {name: np.flatnonzero(split == name) for name in SPLITS}


def _random_parts(
    num_queries: int, rng: np.random.Generator, test_fraction: float, val_fraction: float
) -> dict[str, np.ndarray]:
    order = rng.permutation(num_queries)
    test = int(test_fraction * num_queries + 1e-9)
    val = test + int(val_fraction * (num_queries - test) + 1e-9)
    if not (0 <= test_fraction < 1 and 0 <= val_fraction < 1) or val == num_queries:
        shares = f"data.test_fraction={test_fraction}, data.val_fraction={val_fraction}"
        raise ValueError(f"{shares} leave no training query of {num_queries}; both are at least 0 and below 1")
    return {"train": np.sort(order[val:]), "val": np.sort(order[test:val]), "test": np.sort(order[:test])}
