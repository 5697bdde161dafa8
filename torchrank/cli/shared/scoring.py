"""Scores of a fitted ranker for files of any size, in the order of their rows or as a run for trec_eval."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrank.data.letor.stream import stream_letor
from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError, DataWarning
from torchrank.functional.ragged import sort_within
from torchrank.rankers.core.ranker import Ranker

DOCUMENTS = 20_000  # per batch


def read_pieces(path: str, ranker: Ranker, **reader: Any) -> Iterator[RankingSet]:
    """The lists of a LETOR file, or of stdin if the path is -, with the features of the ranker, piece by piece."""
    if ranker.num_topics is not None:
        raise ValueError(f"this {type(ranker).__name__} has one model per topic: it cannot rank other lists")
    if ranker.by_query:
        name = type(ranker).__name__
        use = ": map vectors with torchrank export and torchrank apply" if name == "Adapter" else ""
        raise ValueError(f"this {name} ranks by query vectors, which {path} cannot hold{use}")
    sparse = None if "sparse" in ranker.takes and not ranker.transform.sparse_refusal else False
    source = sys.stdin.buffer if path == "-" else existing_file(path)
    return stream_letor(source, num_features=ranker.num_features, sparse=sparse, **reader)


def existing_file(path: str) -> Path:
    """The path of a file; a folder and a missing file are refused."""
    if not Path(path).exists():
        raise FileNotFoundError(f"file not found: {path}")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected a file")
    return Path(path)


def read_unlabelled(path: str, ranker: Ranker, **reader: Any) -> Iterator[RankingSet]:
    """`read_pieces` of a file whose labels do not count: -1 is one as any other."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*have label -1 and got.*", DataWarning)
        yield from read_pieces(path, ranker, unjudged=0.0, **reader)


@contextmanager
def beside_the_reader() -> Iterator[None]:
    """Half of the threads for scores: those of the reader work at the same time, and waiting for them takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def scores_of(ranker: Ranker, lists: RankingSet) -> Tensor:
    """Scores (N,) of all entries, on the host."""
    batches = (lists[first:last].to(ranker.device) for first, last in ranges(lists.lengths, DOCUMENTS, 0, len(lists)))
    scores = torch.cat([ranker(batch.x, batch.offsets).cpu() for batch in batches])
    if missing := int(scores.isnan().sum()):
        raise ValueError(f"{missing} of {len(scores)} scores are NaN: did the fit of {type(ranker).__name__} diverge?")
    return scores


def score_text(scores: Tensor) -> str:
    """One score per line with nine digits, from which a float32 is read back exactly.

    >>> score_text(torch.tensor([0.1, -2.0]))
    '0.100000001\\n-2\\n'
    """
    return "%.9g\n" * len(scores) % tuple(scores.tolist())


class RunWriter:
    """Lines `query Q0 document rank score name`, best first. Documents without ids are numbered within their list."""

    def __init__(self, name: str):
        self.name = name
        self.named: bool | None = None  # whether the documents have ids; the first piece decides
        self.queries: set[str] = set()

    def text(self, lists: RankingSet, scores: Tensor) -> str:
        queries, documents = self._ids(lists)
        lengths, order = lists.offsets.diff(), sort_within(scores, lists.offsets)
        ranks = torch.arange(1, len(scores) + 1) - lists.offsets[:-1].repeat_interleave(lengths)
        owner = torch.arange(len(lists)).repeat_interleave(lengths)
        columns = (owner.tolist(), order.tolist(), ranks.tolist(), scores[order].tolist())
        rows = ((queries[q], documents[d], r, s) for q, d, r, s in zip(*columns, strict=True))
        return f"%s Q0 %s %d %.9g {self.name}\n" * len(scores) % tuple(value for row in rows for value in row)

    def _ids(self, lists: RankingSet) -> tuple[list[str], list[str]]:
        """The ids of all lists and entries, checked."""
        named = lists.document_ids is not None
        if self.named not in (None, named):
            raise DataError(f"{lists.name}: some documents have ids and others have none: give all of them one")
        self.named, queries = named, list(lists.query_ids or ())
        places = torch.arange(int(lists.offsets[-1])) - lists.offsets[:-1].repeat_interleave(lists.offsets.diff()) + 1
        documents = list(lists.document_ids) if lists.document_ids is not None else [str(p) for p in places.tolist()]
        for name_of, ids in (("query", queries), ("document", documents)):
            if bad := [text for text in ids if text.split() != [text]]:
                raise DataError(f"{lists.name}: ids in a TREC run must not contain spaces, got {name_of} id {bad[0]!r}")
        if again := self.queries.intersection(queries):
            raise DataError(f"{lists.name}: query {min(again)} is in two of the files: a run can rank it once")
        self.queries.update(queries)
        return queries, documents
