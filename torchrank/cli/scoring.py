"""Scores of a fitted ranker for the lists of a file, in the order of its rows or as a run for trec_eval."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrank.data.letor import read_letor
from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError, DataWarning
from torchrank.functional.ragged import sort_within
from torchrank.rankers.core.ranker import Ranker

DOCUMENTS = 20_000  # per batch


def read_rows(path: str | Path, ranker: Ranker, **reader: Any) -> RankingSet:
    """Read the lists of a LETOR file with the features of the ranker, in the order of the file; labels are ignored."""
    if ranker.num_topics is not None:
        raise ValueError(f"this {type(ranker).__name__} has one model per topic: it cannot rank other lists")
    sparse = None if "sparse" in ranker.takes and not ranker.transform.sparse_refusal else False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*have label -1 and got.*", DataWarning)
        warnings.filterwarnings("error", ".*not contiguous.*", DataWarning)
        try:
            return read_letor(path, num_features=ranker.num_features, sparse=sparse, unjudged=0.0, **reader)
        except DataWarning as error:
            raise DataError(f"{error}: sort the file by query, since scores are in the order of its rows") from None


@torch.no_grad()
def scores_of(ranker: Ranker, lists: RankingSet) -> Tensor:
    """Scores (N,) of all entries, on the host."""
    batches = (lists[first:last].to(ranker.device) for first, last in ranges(lists.lengths, DOCUMENTS, 0, len(lists)))
    scores = torch.cat([ranker(batch.x, batch.offsets).cpu() for batch in batches])
    if missing := int(scores.isnan().sum()):
        raise ValueError(f"{missing} of {len(scores)} scores are NaN: did the fit of {type(ranker).__name__} diverge?")
    return scores


def score_lines(scores: Tensor) -> Iterator[str]:
    """Scores with nine digits, from which a float32 is read back exactly."""
    return (f"{score:.9g}" for score in scores.tolist())


def run_lines(lists: RankingSet, scores: Tensor, name: str) -> Iterator[str]:
    """Lines `query Q0 document rank score name`, best first. Documents without ids are numbered within their list."""
    for name_of, ids in (("query", lists.query_ids), ("document", lists.document_ids)):
        bad = [text for text in ids or () if text.split() != [text]]
        if bad:
            raise DataError(f"{lists.name}: ids in a TREC run must not contain spaces, got {name_of} id {bad[0]!r}")
    order, bounds = sort_within(scores, lists.offsets).tolist(), lists.offsets.tolist()
    values = list(score_lines(scores))
    for number, query in enumerate(lists.query_ids):  # type: ignore[arg-type]
        first = bounds[number]
        for rank, entry in enumerate(order[first : bounds[number + 1]], start=1):
            document = entry - first + 1 if lists.document_ids is None else lists.document_ids[entry]
            yield f"{query} Q0 {document} {rank} {values[entry]} {name}"
