"""What the lists of a file look like: counts, labels, lengths and features, in the memory of a piece."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import polars as pl

from torchrank.data.formats.pieces import Piece, Source

RELEVANT = 1  # the lowest label that counts as relevant
MANY = 30  # labels of more different values are told by their range


def describe(source: Source) -> dict[str, Any]:
    """Counts, labels, lengths and features of a source, as plain values. Missing values are NaN in its pieces.

    Returns:
        queries, documents, features; labels (how many documents have each, or their range); unjudged documents;
        lengths of the lists; queries without a relevant document; and of the features the share of zeros, the number
        of missing values, the constant ones, and the range of each.
    """
    found = _Statistics(source.layout.width)
    for piece in source.read():
        found.add(piece)
    return found.finish(source.layout.features)


class _Statistics:
    def __init__(self, width: int):
        self.rows, self.labels = 0, Counter[float]()
        self.lengths, self.relevant = Counter[str](), set[str]()
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self.present, self.zeros, self.missing = (np.zeros(width, np.int64) for _ in range(3))
        self.beside: dict[str, dict[str, float]] = {}

    def add(self, piece: Piece) -> None:
        self.rows += len(piece.labels)
        values, counts = np.unique(piece.labels, return_counts=True)
        self.labels.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        lengths = piece.queries.value_counts(name="rows")
        self.lengths.update(dict(zip(lengths[lengths.columns[0]].to_list(), lengths["rows"].to_list(), strict=True)))
        self.relevant.update(piece.queries.filter(pl.Series(piece.labels >= RELEVANT)).unique())
        self._add_features(piece.columns, piece.values)
        for name, numbers in (("weights", piece.weights), ("positions", piece.positions)):
            if numbers is not None:
                self._add_beside(name, numbers)

    def _add_beside(self, name: str, numbers: np.ndarray) -> None:
        found = self.beside.setdefault(name, {"min": np.inf, "mean": 0.0, "max": -np.inf})
        found["min"], found["max"] = min(found["min"], float(numbers.min())), max(found["max"], float(numbers.max()))
        found["mean"] += float(numbers.sum())

    def _add_features(self, columns: np.ndarray, values: np.ndarray) -> None:
        width = len(self.low)
        np.fmin.at(self.low, columns, values)
        np.fmax.at(self.high, columns, values)
        self.present += np.bincount(columns, minlength=width)
        self.zeros += np.bincount(columns[values == 0], minlength=width)
        self.missing += np.bincount(columns[np.isnan(values)], minlength=width)

    def finish(self, names: tuple[str, ...]) -> dict[str, Any]:
        absent = self.rows - self.present
        low = np.where(absent, np.minimum(self.low, 0), self.low)
        high = np.where(absent, np.maximum(self.high, 0), self.high)
        lengths = np.array(list(self.lengths.values()))
        ranges = {name: [float(a), float(b)] for name, a, b in zip(names, low, high, strict=True)}
        return {
            "queries": len(lengths),
            "documents": self.rows,
            "features": len(names),
            "labels": self._labels(),
            "unjudged": sum(count for label, count in self.labels.items() if label < 0),
            "lengths": {
                "min": int(lengths.min()),
                "median": float(np.median(lengths)),
                "mean": float(lengths.mean()),
                "max": int(lengths.max()),
            },
            "queries_of_one_document": int((lengths == 1).sum()),
            "queries_without_relevant": len(lengths) - len(self.relevant),
            "zeros": float((self.zeros + absent).sum() / (self.rows * len(names))),
            "missing": int(self.missing.sum()),
            **{name: {**found, "mean": found["mean"] / self.rows} for name, found in self.beside.items()},
            "constant": [name for name, a, b in zip(names, low, high, strict=True) if not a < b],
            "ranges": ranges,
        }

    def _labels(self) -> dict[str, Any]:
        if len(self.labels) <= MANY:
            return {f"{label:g}": self.labels[label] for label in sorted(self.labels)}
        return {"min": min(self.labels), "max": max(self.labels), "different": len(self.labels)}
