"""A corpus, query vectors and relevance lists: relevance is given, and need not be mutual."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchrank.data.letor.store import seen_before
from torchrank.data.relevance import Judged
from torchrank.data.sets import RankingSet
from torchrank.data.sources.point_tables import read_arrays
from torchrank.errors import DataError, DataWarning

SPLITS = ("train", "val", "test")
NAMED = (("query_ids", "queries"), ("corpus_ids", "corpus"))  # arrays of names, and of what they name


class Pairs(NamedTuple):
    """Lists of corpus rows as triples (query, row, grade), sorted by query; `where` names the source in messages."""

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
    """Queries that rank one corpus, from an npz file with these arrays:

    - `corpus` (n, D) and `queries` (Q, D);
    - `relevant` (J,) corpus rows and `relevant_offsets` (Q+1,): query q has `relevant[offsets[q]:offsets[q+1]]`;
      with `relevant_grades` (J,) if these are not all 1. Or the text file `relevant` instead;
    - optional `candidates`, `candidates_offsets` (or the text file): the rows that a query ranks; by default all rows;
    - optional `query_rows` (Q,): the corpus row that is the query itself and not ranked, -1 if there is none;
    - optional `query_ids` (Q,) and `corpus_ids` (n,); optional `split` (Q,) of "train", "val", "test".

    A text file has lines "query document [grade]", by id, or by number from 0 if there are no ids.

    Args:
        file: the npz file.
        root: the folder of the files; by default the current one.
        relevant: the text file of relevant documents.
        candidates: the text file of candidates.
        fold: the number of the random split, 1, 2, ...; not used with `split`.
        seed: draws the splits.
        test_fraction: the share of all queries for testing.
        val_fraction: the share of the other queries for validation.

    Returns:
        The sets "train", "val" and "test", those that have queries.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "tiny.npz"
        >>> lists = {"relevant": [1, 0, 2], "relevant_offsets": [0, 1, 3, 3], "split": ["train", "train", "test"]}
        >>> np.savez(path, corpus=np.eye(3), queries=np.eye(3), query_rows=[0, 1, -1], **lists)
        >>> train = load_retrieval(path)["train"][:]
        >>> train.index, train.labels
        (tensor([1, 2, 0, 2]), tensor([1., 0., 1., 1.]))
    """
    if fold < 1:
        raise ValueError(f"data.fold must be >= 1, got {fold}")
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
        parts = random_parts(len(whole), np.random.default_rng((seed, fold)), test_fraction, val_fraction)
    sets = {name: whole.subset(rows) for name, rows in parts.items() if len(rows)}
    for name, part in sets.items():
        part.name = name
    return sets


def _open(path: Path, root: str | Path | None) -> dict[str, np.ndarray]:
    """The arrays of the file, corpus and query vectors checked and in float32."""
    if not path.is_file():
        raise FileNotFoundError(f"retrieval: not found: {path}. Set data.file to an npz file below data.root={root}.")
    arrays = read_arrays(path)
    for name in ("corpus", "queries"):
        if name not in arrays or arrays[name].ndim != 2:
            raise DataError(f"{path}: expected an array {name} with a vector in each row, found {sorted(arrays)}")
        arrays[name] = arrays[name].astype(np.float32)
        bad = np.argwhere(~np.isfinite(arrays[name]))
        if len(bad):
            raise DataError(f"{path}: {name}[{bad[0, 0]}, {bad[0, 1]}] is not a finite number: fill it first")
        if len(arrays[name]) == 0:
            raise DataError(f"{path}: {name} has no rows")
    corpus, queries = arrays["corpus"].shape, arrays["queries"].shape
    if corpus[1] != queries[1]:
        raise DataError(f"{path}: corpus rows have {corpus[1]} features, but query vectors have {queries[1]}")
    for name, count in (("query_ids", queries[0]), ("corpus_ids", corpus[0])):
        if name in arrays and arrays[name].shape != (count,):
            raise DataError(f"{path}: {name} has shape {arrays[name].shape}, expected ({count},)")
        if name in arrays and len(np.unique(arrays[name])) < count:
            raise DataError(f"{path}: {name} contains an id twice, expected different ids")
    return arrays


def _own_rows(arrays: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """The corpus row that is the query itself (Q,); n if there is none."""
    num_queries, num_rows = len(arrays["queries"]), len(arrays["corpus"])
    own = np.asarray(arrays.get("query_rows", np.full(num_queries, -1)))
    if own.shape != (num_queries,) or own.dtype.kind not in "iu":
        raise DataError(f"{path}: query_rows is {own.dtype} {own.shape}, expected {num_queries} integers")
    wrong = np.flatnonzero((own < -1) | (own >= num_rows))
    if len(wrong):
        limits = f"the corpus has rows 0..{num_rows - 1}; -1 means that the query is none of them"
        raise DataError(f"{path}: query_rows[{wrong[0]}] is {own[wrong[0]]}, but {limits}")
    return np.where(own < 0, num_rows, own).astype(np.int64)


def _pairs(arrays: dict[str, np.ndarray], own: np.ndarray, name: str, path: Path, text: Path | None) -> Pairs:
    """The lists of the text file if there is one, otherwise of the arrays `name` and `name_offsets`; checked."""
    pairs = _read_arrays(arrays, name, path) if text is None else _read_text(text, arrays)
    _check(pairs, own, arrays)
    return pairs


def _read_arrays(arrays: dict[str, np.ndarray], name: str, path: Path) -> Pairs:
    if name not in arrays or f"{name}_offsets" not in arrays:
        raise DataError(f"{path}: expected the arrays {name} and {name}_offsets, or set data.{name}=<text file>")
    rows, offsets, num_queries = arrays[name], arrays[f"{name}_offsets"], len(arrays["queries"])
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise DataError(f"{path}: {name} is {rows.dtype} {rows.shape}, expected corpus rows as integers (J,)")
    whole = offsets.shape == (num_queries + 1,) and offsets.dtype.kind in "iu"
    rising = whole and (np.diff(offsets.astype(np.int64)) >= 0).all()
    if not rising or offsets[0] != 0 or offsets[-1] != len(rows):
        expected = f"{num_queries + 1} integers that rise from 0 to {len(rows)}, one more than there are queries"
        raise DataError(f"{path}: {name}_offsets must be {expected}")
    grades = np.asarray(arrays.get(f"{name}_grades", np.ones(len(rows))), dtype=np.float32)
    if grades.shape != rows.shape:
        raise DataError(f"{path}: {len(grades)} {name}_grades for {len(rows)} rows")
    return Pairs(np.repeat(np.arange(num_queries), np.diff(offsets)), rows.astype(np.int64), grades, f"{path}: {name}")


def _read_text(path: Path, arrays: dict[str, np.ndarray]) -> Pairs:
    """Lines "query document [grade]"; blank lines are skipped."""
    if not path.is_file():
        raise FileNotFoundError(f'retrieval: not found: {path}, a file of lines "query document [grade]"')
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
        raise DataError(f'{where}: {len(cells)} words, expected "query document [grade]"')
    for cell, known, (ids, part) in zip(cells, places, NAMED, strict=False):
        if cell not in known:
            raise DataError(f"{where}: {cell!r} is not one of {len(known)} {part} (by {ids}, or numbered from 0)")
    try:
        grade = float(cells[2]) if len(cells) == 3 else 1.0
    except ValueError:
        raise DataError(f"{where}: grade {cells[2]!r} is not a number") from None
    return places[0][cells[0]], places[1][cells[1]], grade


def _check(pairs: Pairs, own: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    """Refuse rows outside the corpus, the query itself, repeated rows, and grades that are not finite and >= 0."""
    num_rows = len(arrays["corpus"])
    keys = pairs.query * (num_rows + 1) + pairs.row
    problems = (
        ((pairs.row < 0) | (pairs.row >= num_rows), f"the corpus has rows 0..{num_rows - 1} only"),
        (pairs.row == own[pairs.query], "this is the query itself (query_rows): remove it from its list"),
        (seen_before(keys), "it occurs twice in the list: keep one"),
        (~(pairs.grade >= 0) | np.isinf(pairs.grade), "grades must be finite and >= 0"),
    )
    for wrong, reason in problems:
        if wrong.any():
            entry = int(np.flatnonzero(wrong)[0])
            query = int(pairs.query[entry])
            place = f"query {query}, entry {entry - int(np.searchsorted(pairs.query, query))} of its list"
            raise DataError(f"{pairs.where}, {place}: row {pairs.row[entry]}, grade {pairs.grade[entry]:g}: {reason}")


def _whole_corpus(arrays: dict[str, np.ndarray], judged: Pairs, own: np.ndarray) -> RankingSet:
    above = judged.grade > 0  # rows that are not listed have grade 0 anyway
    counts = np.bincount(judged.query[above], minlength=len(own))
    rows, grades = judged.row[above], judged.grade[above]
    return RankingSet(
        torch.from_numpy(arrays["corpus"]),
        Judged.make(rows, grades, counts, len(arrays["corpus"]), torch.from_numpy(own)),
        queries=torch.from_numpy(arrays["queries"]),
        query_ids=_text(arrays.get("query_ids", np.arange(len(own)))),
        document_ids=_text(arrays.get("corpus_ids")),
    )


def _listed(arrays: dict[str, np.ndarray], judged: Pairs, chosen: Pairs) -> RankingSet:
    """Queries that rank their candidates only, in the order of the candidate lists."""
    num_queries, num_rows = len(arrays["queries"]), len(arrays["corpus"])
    keys, wanted = chosen.query * num_rows + chosen.row, judged.query * num_rows + judged.row
    order = np.argsort(wanted)
    lost = ~np.isin(wanted, keys) & (judged.grade > 0)
    if lost.any():
        found = f"{lost.sum()} of {(judged.grade > 0).sum()} relevant documents"
        text = f"{found} are not among the candidates of their query: they are not ranked and do not count."
        warnings.warn(f"{judged.where}: {text}", DataWarning, stacklevel=3)
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
        raise DataError(f"{path}: split must be train, val or test for each of {num_queries} queries, found {found}")
    if "train" not in split:
        raise DataError(f"{path}: split is train for none of {num_queries} queries")
    return {name: np.flatnonzero(split == name) for name in SPLITS}


def random_parts(
    num_queries: int, rng: np.random.Generator, test_fraction: float, val_fraction: float
) -> dict[str, np.ndarray]:
    order = rng.permutation(num_queries)
    test = int(test_fraction * num_queries + 1e-9)
    val = test + int(val_fraction * (num_queries - test) + 1e-9)
    if not (0 <= test_fraction < 1 and 0 <= val_fraction < 1) or val == num_queries:
        shares = f"data.test_fraction={test_fraction}, data.val_fraction={val_fraction}"
        raise ValueError(f"{shares} must be >= 0 and < 1, and leave a training query of {num_queries}")
    return {"train": np.sort(order[val:]), "val": np.sort(order[test:val]), "test": np.sort(order[:test])}
