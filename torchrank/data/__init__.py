"""Ranking data: batches, sets, sparse rows, samplers, transforms, and the sources of the data."""

from torchrank.data.batch import Batch, make_batch
from torchrank.data.cleaning import CleanReport, clean
from torchrank.data.relevance import Explicit, Judged, Relevance, SameClass
from torchrank.data.sampler import BatchLoader, BudgetSampler, ranges, shard
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.synthetic.mslr import synthetic_splits
from torchrank.data.training import TrainingLists
from torchrank.data.transforms import Transform, make_transform

__all__ = [
    "Batch",
    "BatchLoader",
    "BudgetSampler",
    "CleanReport",
    "Explicit",
    "Judged",
    "RankingSet",
    "Relevance",
    "SameClass",
    "SparseRows",
    "TrainingLists",
    "Transform",
    "clean",
    "make_batch",
    "make_transform",
    "ranges",
    "shard",
    "synthetic_splits",
]
