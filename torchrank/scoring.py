"""A fitted ranker applied to a file of lists: scores in the order of its rows, or a run for trec_eval."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrank.data.letor import DataWarning, read_letor
from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.functional.ragged import sort_within
from torchrank.rankers.core.ranker import Ranker

DOCUMENTS = 20_000  # scored at a time


def read_rows(path: str | Path, ranker: Ranker, **reader: Any) -> RankingSet:
    """The lists of a LETOR file with the features of the ranker, in the order of the file; its labels do not matter."""
    if ranker.num_topics is not None:
        raise ValueError(f"this {type(ranker).__name__} has a model for each of its topics, and ranks no other lists")
    sparse = None if "sparse" in ranker.takes and not ranker.transform.sparse_refusal else False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*have label -1 and got.*", DataWarning)
        warnings.filterwarnings("error", ".*not contiguous.*", DataWarning)
        try:
            return read_letor(path, num_features=ranker.num_features, sparse=sparse, unjudged=0.0, **reader)
        except DataWarning as error:
            raise ValueError(f"{error}: sort the file by query, since scores are in the order of its rows") from None


@torch.no_grad()
def scores_of(ranker: Ranker, lists: RankingSet) -> Tensor:
    """Scores (N,) of all entries, on the host."""
    batches = (lists[first:last].to(ranker.device) for first, last in ranges(lists.lengths, DOCUMENTS, 0, len(lists)))
    scores = torch.cat([ranker(batch.x, batch.offsets).cpu() for batch in batches])
    if missing := int(scores.isnan().sum()):
        raise ValueError(f"{missing} of {len(scores)} scores are NaN: this {type(ranker).__name__} did not learn")
    return scores


def score_lines(scores: Tensor) -> Iterator[str]:
    """Nine digits: a float32 is read back as it was."""
    return (f"{score:.9g}" for score in scores.tolist())


def run_lines(lists: RankingSet, scores: Tensor, name: str) -> Iterator[str]:
    """`query Q0 document rank score name`, best first. Where no document has an id they are numbered in their list."""
    for name_of, ids in (("query", lists.query_ids), ("document", lists.document_ids)):
        bad = [text for text in ids or () if text.split() != [text]]
        if bad:
            raise ValueError(f"a run is made of words, and a {name_of} of '{lists.name}' has the id {bad[0]!r}")
    order, bounds = sort_within(scores, lists.offsets).tolist(), lists.offsets.tolist()
    values = list(score_lines(scores))
    for number, query in enumerate(lists.query_ids):  # type: ignore[arg-type]
        first = bounds[number]
        for rank, entry in enumerate(order[first : bounds[number + 1]], start=1):
            document = entry - first + 1 if lists.document_ids is None else lists.document_ids[entry]
            yield f"{query} Q0 {document} {rank} {values[entry]} {name}"
