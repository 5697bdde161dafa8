"""What an adapter learns from: the judged documents of each query, and some of the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch, count_pairs
from torchrank.data.relevance import Judged
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError

NEGATIVES = ("mined", "random", "batch", "all")


class Pool(NamedTuple):
    """The judged documents of all training queries, on the host, so that no device is asked for the size of a list.

    Args:
        rows: (J,) judged documents, query by query.
        grades: (J,) their grades, 0 or more.
        offsets: (Q + 1,) where those of each query begin and end.
        num_rows: documents of the corpus.
        num_grades: K where the grades are integers of 0..K-1, otherwise 0.
        own: (Q,) the document that is the query itself, which is never in its list; `num_rows`: there is none.

    Example:
        >>> pool = Pool(np.array([2, 0]), np.ones(2, dtype=np.float32), np.array([0, 1, 2]), 3, 2, np.array([3, 3]))
        >>> batch = pool.batch(np.array([0, 1]), np.array([[1, 2], [1, 2]]), torch.eye(3), torch.eye(3)[:2])
        >>> batch.index, batch.labels, batch.offsets
        (tensor([1, 2, 0, 1, 2]), tensor([0., 1., 1., 0., 0.]), tensor([0, 2, 5]))
    """

    rows: np.ndarray
    grades: np.ndarray
    offsets: np.ndarray
    num_rows: int
    num_grades: int
    own: np.ndarray

    @classmethod
    def of(cls, lists: TrainingLists) -> Pool:
        """The judgements of the lists; refused where these are not rankings of a whole corpus by given judgements."""
        known = lists.lists.relevance
        if not isinstance(known, Judged):
            raise DataError(
                "negatives=mined, random and batch are for a corpus with judged documents (data=embeddings with "
                "clean=none, or data=retrieval without candidates): set negatives=all for these lists"
            )
        bounds = np.concatenate(([0], np.cumsum(known.counts)))
        rows, grades, own = (part.cpu().numpy() for part in (known.rows, known.grades, known.own))
        return cls(rows, grades, bounds, known.num_rows, known.num_grades, own)

    def batch(self, positions: np.ndarray, others: np.ndarray, corpus: Tensor, queries: Tensor) -> Batch:
        """The judged documents of the queries at these positions and their `others` (len(positions), k), each once.

        Only rows that a list has are in the batch, in float64.
        """
        place, taken = self._judged(positions)
        beside = np.repeat(np.arange(len(positions)), others.shape[1])
        kept = others.ravel() != self.own[positions][beside]
        others, beside = others.ravel()[kept], beside[kept]
        keys = np.concatenate((place * self.num_rows + self.rows[taken], beside * self.num_rows + others))
        entries, first = np.unique(keys, return_index=True)  # the first one is the judged one, which has the grade
        labels = np.concatenate((self.grades[taken], np.zeros(len(others), dtype=np.float32)))[first]
        bounds = np.searchsorted(entries, self.num_rows * np.arange(len(positions) + 1))
        there, index = np.unique(entries % self.num_rows, return_inverse=True)
        sizes = int(np.diff(bounds).max(initial=0)), int(count_pairs(labels, bounds, self.num_grades).sum())
        used, offsets, query, entries_of_rows, grades = _moved(
            [there, bounds, positions, index, labels.astype(np.float64).view(np.int64)], corpus.device
        )
        grades = grades.view(torch.float64).float()
        rows, vectors = corpus.index_select(0, used).double(), queries.index_select(0, query).double()
        return Batch(rows, grades, offsets, query, entries_of_rows, vectors, *sizes, self.num_grades)

    def relevant(self, positions: np.ndarray) -> np.ndarray:
        """The documents that are relevant to one of these queries, each once."""
        taken = self._judged(positions)[1]
        found: np.ndarray = np.unique(self.rows[taken][self.grades[taken] > 0])
        return found

    def _judged(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The judgements of these queries: place among the positions, and place among all judgements."""
        counts = np.diff(self.offsets)[positions]
        starts = self.offsets[positions] - np.concatenate(([0], np.cumsum(counts)[:-1]))
        return np.repeat(np.arange(len(positions)), counts), np.repeat(starts, counts) + np.arange(counts.sum())


def _moved(parts: list[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of 64-bit integers on a device, in one copy."""
    whole = torch.from_numpy(np.concatenate(parts)).to(device)
    return list(whole.split([len(each) for each in parts]))
