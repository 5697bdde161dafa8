"""Your own tables with a column of labels and a column of query ids, as lists of documents."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from torchrank.data.cache import cached
from torchrank.data.catalogue import given_files, hold_out
from torchrank.data.letor import check_form, joined, tell_changes
from torchrank.data.letor.form import LARGEST, Form, single
from torchrank.data.sets import RankingSet
from torchrank.data.sources.frames import Columns, count_rows, find_columns, read_batches
from torchrank.errors import DataError, DataWarning


def read_table(
    path: str | Path,
    *,
    label: str = "label",
    query: str = "query",
    document: str | None = None,
    features: Sequence[str] | None = None,
    unjudged: str | float = "error",
    missing: str | float = "error",
    sentinel: str | float = "error",
    weight: str | None = None,
    position: str | None = None,
) -> RankingSet:
    """Read the lists of a table, one row per document. Rows of a query need not be contiguous.

    Args:
        path: a csv (with a header; separated by commas, tabs or semicolons; plain or compressed), parquet or Arrow
            IPC (.arrow, .feather) file; its first bytes tell which.
        label: the column of labels.
        query: the column of query ids.
        document: the column of document ids; by default the column "document", if there is one.
        features: the columns of features; by default all other columns of numbers, in the order of the file. Columns of
            text are left out with a `DataWarning`, apart from "comment".
        unjudged: what to do with documents of a negative label, such as -1: "drop" them, or a label such as 0.
        missing: the value of features that are empty, null or NaN.
        sentinel: the value of numbers beyond float32, such as 0; "clip" clips them to the largest float32, 3.4e38.
        weight: the column of weights of the documents, 0 or more.
        position: the column of positions at which the documents were shown, integers from 0.

    Returns:
        The lists, in the order in which their queries first appear, with the `feature_names` of the columns.
        Everything that was changed is counted in a `DataWarning`; everything that is wrong raises a `DataError` with
        file, row (from 1, below the header) and column.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("grade,qid,bm25,clicks\\n2,a,0.5,7\\n0,a,0.25,1\\n1,b,1,0\\n")
        ...     file.flush()
        ...     lists = read_table(file.name, label="grade", query="qid")
        >>> lists.feature_names, lists.x.tolist()
        (('bm25', 'clicks'), [[0.5, 7.0], [0.25, 1.0], [1.0, 0.0]])
        >>> lists.labels.tolist(), lists.offsets.tolist(), list(lists.query_ids)
        ([2.0, 0.0, 1.0], [0, 2, 3], ['a', 'b'])
    """
    path, form = Path(path), Form("token", None, unjudged, missing, sentinel)
    check_form(form, None)
    numbers = {"weight": weight, "position": position}
    columns = find_columns(path, label=label, query=query, document=document, features=features, **numbers)
    if columns.ignored:
        names = ", ".join(map(repr, columns.ignored[:5])) + (", ..." if len(columns.ignored) > 5 else "")
        told = f"{path}: {len(columns.ignored)} columns have no numbers and are no features: {names}"
        warnings.warn(told, DataWarning, stacklevel=2)
    gathered = _Gathered(path, columns, form)
    for frame, filled in read_batches(path, columns, missing=None if missing == "error" else float(missing)):
        gathered.add(frame, filled)
    return gathered.finish()


def load_table(
    train: str | Path | None = None,
    *,
    val: str | Path | None = None,
    test: str | Path | None = None,
    root: str | Path | None = None,
    label: str = "label",
    query: str = "query",
    document: str | None = None,
    features: Sequence[str] | None = None,
    unjudged: str | float | None = None,
    missing: float | None = None,
    sentinel: str | float | None = None,
    weight: str | None = None,
    position: str | None = None,
    cache_dir: str | Path | None = None,
    fold: int = 1,
    seed: int = 0,
) -> dict[str, RankingSet]:
    """The sets "train", "val" and "test" of your own tables.

    Args:
        train: the training file; the others must have its columns of features, in any order.
        val: the validation file; by default 20% of the training queries are held out.
        test: the test file; by default there is no such set.
        root: the folder of the files; by default the current one.
        label: the column of labels, see `read_table` for this and the following options.
        query: the column of query ids.
        document: the column of document ids.
        features: the columns of features.
        unjudged: what to do with documents of a negative label; None raises an error.
        missing: the value of features that are missing; None raises an error.
        sentinel: the value of numbers beyond float32; None raises an error.
        weight: the column of weights.
        position: the column of positions.
        cache_dir: where parsed files are cached; by default beside the data.
        fold: must be 1.
        seed: draws the queries that are held out.

    Returns:
        The sets.

    Example:
        >>> load_table()
        Traceback (most recent call last):
        ValueError: data=table needs data.train=FILE; data.val=FILE and data.test=FILE are optional
    """
    if fold != 1:
        raise ValueError(f"data.fold of table must be 1, got {fold}")
    paths = given_files("table", root, {"train": train, "val": val, "test": test})
    changes = {"unjudged": unjudged, "missing": missing, "sentinel": sentinel}
    options: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    options |= {"label": label, "query": query, "document": document}
    options |= {name: column for name, column in (("weight", weight), ("position", position)) if column is not None}
    names = None if features is None else list(features)
    sets: dict[str, RankingSet] = {}
    for split, path in paths.items():
        sets[split] = cached(path, read_table, {**options, "features": names}, cache_dir=cache_dir)
        sets[split].name = split
        names = list(sets["train"].feature_names or ())
    return hold_out(sets, {"val": 0.2}, seed)


class _Gathered:
    """The rows of all batches so far, and the counts of what was changed in them."""

    def __init__(self, path: Path, columns: Columns, form: Form):
        self.path, self.columns, self.form = path, columns, form
        rows = count_rows(path, columns)
        self.x, self.labels = np.empty((rows, len(columns.features)), np.float32), np.empty(rows, np.float32)
        self.ids: dict[str, list[pl.Series]] = {name: [] for name in (*columns.ids, *columns.numbers[1:])}
        self.size = self.rows = self.unjudged = self.filled = self.clipped = 0
        self.dropped: set[str] = set()  # query ids of dropped rows

    def add(self, frame: pl.DataFrame, filled: int) -> None:
        first, self.rows = self.rows + 1, self.rows + len(frame)
        x, labels = self._features(frame.select(self.columns.features), first), self._labels(frame, first)
        kept = np.isfinite(labels)
        place = slice(self.size, self.size + int(kept.sum()))
        if place.stop > len(self.labels):
            raise DataError(
                f"{self.path}: more rows than the {len(self.labels)} that the file announces: it is damaged"
            )
        self.x[place], self.labels[place] = (x, labels) if kept.all() else (x[kept], labels[kept])
        for name, parts in self.ids.items():
            parts.append(frame[name].filter(pl.Series(kept)))
        self.size, self.filled = place.stop, self.filled + filled

    def _labels(self, frame: pl.DataFrame, first: int) -> np.ndarray:
        """The labels; NaN for a row that is dropped."""
        labels = single(frame[self.columns.label].to_numpy())
        unjudged = labels < 0
        if not unjudged.any():
            return labels
        if self.form.unjudged == "error":
            raise DataError(
                f"{self.path}, row {first + int(unjudged.argmax())}, column {self.columns.label!r}: label "
                f"{labels[unjudged][0]:g} means that the document is unjudged. Set unjudged=drop "
                "(data.unjudged=drop) to drop such documents, or unjudged=0 to give them label 0"
            )
        self.unjudged += int(unjudged.sum())
        if self.form.unjudged == "drop":
            self.dropped.update(frame[self.columns.query].filter(pl.Series(unjudged)))
        return np.where(unjudged, np.float32("nan" if self.form.unjudged == "drop" else self.form.unjudged), labels)

    def _features(self, features: pl.DataFrame, first: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            x = features.to_numpy().astype(np.float32)
        beyond = np.isinf(x)
        if not beyond.any():
            return x
        if self.form.sentinel == "error":
            row, column = np.argwhere(beyond)[0].tolist()
            raise DataError(
                f"{self.path}, row {first + row}, column {features.columns[column]!r}: {features[row, column]!r} does "
                f"not fit float32 (largest {LARGEST:.7g}). Set sentinel=0 (data.sentinel=0), or another number, to "
                "replace such values, or sentinel=clip to clip them to the largest"
            )
        x[beyond] = np.copysign(LARGEST, x[beyond]) if self.form.sentinel == "clip" else self.form.sentinel
        self.clipped += int(beyond.sum())
        return x

    def finish(self) -> RankingSet:
        path, columns = self.path, self.columns
        if not self.rows:
            raise DataError(f"{path}: the table has no rows, expected one document per row")
        ids = {name: pl.concat(parts) for name, parts in self.ids.items()}
        names = ids[columns.query].unique(maintain_order=True)
        lost = len(self.dropped - set(names))
        tell_changes(str(path), self.form, self.rows, self.unjudged, lost, self.filled, self.clipped)
        if not self.size:
            raise DataError(f"{path}: all {self.rows} rows have label -1, so unjudged=drop leaves none")
        numbers = pl.DataFrame({"id": names}).with_row_index("number")
        query = pl.DataFrame({"id": ids[columns.query]}).join(numbers, on="id", how="left", maintain_order="left")
        documents = None if columns.document is None else _encoded(ids[columns.document])
        weights, positions = (name and ids[name].to_numpy() for name in (columns.weight, columns.position))
        return joined(
            str(path),
            query["number"].to_numpy().astype(np.int64),
            torch.from_numpy(self.x[: self.size]),
            torch.from_numpy(self.labels[: self.size]),
            _encoded(names),
            documents,
            feature_names=columns.features,
            weights=weights,  # type: ignore[arg-type]
            positions=positions,  # type: ignore[arg-type]
        )


def _encoded(texts: pl.Series) -> list[bytes]:
    return [text.encode() for text in texts.to_list()]
