"""Arrays: npz files, and the folders of our cache. Both hold whole sets in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import torch

from torchrank.data.formats.pieces import Layout, Piece, Source, from_dense, generic_names, real
from torchrank.data.letor import joined
from torchrank.data.letor.files import WIDEST
from torchrank.data.relevance import Explicit
from torchrank.data.sets import RankingSet
from torchrank.data.sources.point_tables import read_arrays
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError

ROWS = 2**14  # of a piece
TEXTS = ("query_ids", "document_ids", "feature_names")
NUMBERS = ("weights", "positions")
SPARSE = ("values", "columns", "row_offsets", "num_features")


def read_npz(path: Path) -> RankingSet:
    """The lists of an npz file with the arrays x, labels, offsets and, if it has them, query_ids, document_ids and
    feature_names, weights and positions; sparse rows are the arrays values, columns, row_offsets and num_features
    instead of x."""
    arrays = read_arrays(path)
    rows = SPARSE if "values" in arrays else ("x",)
    if absent := [name for name in (*rows, "labels", "offsets") if name not in arrays]:
        found = ", ".join(sorted(arrays)) or "none"
        raise DataError(
            f"{path}: no array {absent[0]!r}, expected x (n, D), labels (n,), offsets (Q + 1,), found {found}"
        )
    for name in (*rows, "labels", "offsets", *(name for name in NUMBERS if name in arrays)):
        if arrays[name].dtype.kind not in "buif":
            raise DataError(f"{path}: the array {name} is of type {arrays[name].dtype}, expected numbers")
    parts = [torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in rows]
    x = SparseRows(parts[0], parts[1], parts[2], int(parts[3])) if len(parts) > 1 else _real(parts[0])
    ids: dict[str, Any] = {name: arrays[name].astype(str) for name in TEXTS if name in arrays}
    ids |= {name: arrays[name] for name in NUMBERS if name in arrays}
    labels, offsets = _real(torch.from_numpy(arrays["labels"])), torch.from_numpy(arrays["offsets"].astype(np.int64))
    return RankingSet(x, Explicit(labels, offsets), name=path.name, **ids)


def _real(numbers: torch.Tensor) -> torch.Tensor:
    return numbers if numbers.is_floating_point() else numbers.double()


def write_npz(file: IO[bytes], lists: RankingSet) -> None:
    """Write what `read_npz` reads."""
    arrays = {"labels": lists.labels.numpy(), "offsets": lists.offsets.numpy()}
    if isinstance(lists.x, SparseRows):
        arrays |= {name: vars(lists.x)[name].numpy() for name in SPARSE[:3]}
        arrays["num_features"] = np.array(lists.num_features)
    else:
        arrays["x"] = lists.x.numpy()
    arrays |= {name: each.numpy() for name in NUMBERS if (each := getattr(lists, name)) is not None}
    for name in TEXTS:
        if getattr(lists, name) is not None:
            arrays[name] = np.array(list(getattr(lists, name)), dtype=str)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def set_source(lists: RankingSet) -> Source:
    """A set in memory as a source."""
    if lists.is_shared:
        raise DataError(f"{lists.name}: lists that share a corpus cannot be converted")
    if lists.num_features > WIDEST:
        raise DataError(
            f"{lists.name}: {lists.num_features} features, expected at most {WIDEST} to convert or describe"
        )
    names, dtype = lists.feature_names, real(lists.x.dtype != torch.float64)
    documents, named = lists.document_ids is not None, names is not None
    features, numbers = (
        names or generic_names(lists.num_features),
        {name: vars(lists)[name] is not None for name in NUMBERS},
    )
    layout = Layout(features, named, documents, False, dtype, lists.is_sparse, **numbers)
    return Source(layout, lambda: _pieces(lists))


def _pieces(lists: RankingSet) -> Iterator[Piece]:
    ids = range(1, len(lists) + 1) if lists.query_ids is None else lists.query_ids
    queries = pl.Series(np.repeat(np.array([str(each) for each in ids]), lists.lengths), dtype=pl.String)
    documents = None if lists.document_ids is None else pl.Series([str(each) for each in lists.document_ids])
    for start in range(0, len(lists.x), ROWS):
        rows = slice(start, start + ROWS)
        x, labels = lists.x[rows], lists.labels[rows].numpy()
        texts = queries[rows], None if documents is None else documents[rows], None
        given: dict[str, Any] = {
            name: None if vars(lists)[name] is None else vars(lists)[name][rows].numpy() for name in NUMBERS
        }
        if isinstance(x, SparseRows):
            counts = x.row_offsets.diff().numpy()
            yield Piece(labels, *texts, counts, x.columns.numpy().astype(np.int64), x.values.numpy(), **given)
        else:
            yield from_dense(x.numpy(), labels, *texts, **given)


def gather(where: str, pieces: Iterable[Piece], layout: Layout) -> RankingSet:
    """All pieces as one set; rows of a query that are not contiguous are joined, with a warning."""
    parts = list(pieces)
    numbers: dict[str, int] = {}
    query = [np.array([numbers.setdefault(each, len(numbers)) for each in piece.queries]) for piece in parts]
    labels = np.concatenate([piece.labels for piece in parts])
    documents = [text.encode() for piece in parts for text in piece.documents] if layout.documents else None  # type: ignore[union-attr]
    return joined(
        where,
        np.concatenate(query),
        _sparse(parts, layout) if layout.sparse else _dense(parts, layout),
        torch.from_numpy(labels.astype(layout.dtype)),
        [text.encode() for text in numbers],
        documents,
        feature_names=layout.features if layout.named else None,
        weights=np.concatenate([piece.weights for piece in parts]) if layout.weights else None,
        positions=np.concatenate([piece.positions for piece in parts]) if layout.positions else None,
    )


def _dense(parts: list[Piece], layout: Layout) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([piece.dense(layout.width, layout.dtype) for piece in parts]))


def _sparse(parts: list[Piece], layout: Layout) -> SparseRows:
    """The non-zero values of all pieces."""
    kept = [piece.values != 0 for piece in parts]
    rows = [np.repeat(np.arange(len(piece.counts)), piece.counts) for piece in parts]
    counts = [np.bincount(rows[i][kept[i]], minlength=len(piece.counts)) for i, piece in enumerate(parts)]
    values = np.concatenate([piece.values[kept[i]] for i, piece in enumerate(parts)]).astype(layout.dtype)
    columns = np.concatenate([piece.columns[kept[i]] for i, piece in enumerate(parts)]).astype(np.int32)
    bounds = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    tensors = [torch.from_numpy(array) for array in (values, columns, bounds)]
    return SparseRows(tensors[0], tensors[1], tensors[2], layout.width)
