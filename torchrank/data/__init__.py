"""Ranking data: batches, sets, sparse rows, samplers, transforms and where the data comes from."""

from torchrank.data.batch import Batch, make_batch
from torchrank.data.cleaning import CleanReport, clean
from torchrank.data.sampler import BudgetSampler, ranges, shard
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.synthetic.mslr import synthetic_splits
from torchrank.data.transforms import make_transform
from torchrank.data.transforms.base import Transform

__all__ = [
    "Batch",
    "BudgetSampler",
    "CleanReport",
    "RankingSet",
    "SparseRows",
    "Transform",
    "clean",
    "make_batch",
    "make_transform",
    "ranges",
    "shard",
    "synthetic_splits",
]
