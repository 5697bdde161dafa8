"""torchrank: learning to rank and metric learning on PyTorch.

Rankers, data and everything that needs Lightning are imported when they are first asked for, so that
`torchrank.functional` costs torch alone.

Example:
    >>> import torchrank
    >>> sorted(torchrank.RANKERS)[:3]
    ['AdaRank', 'Adapter', 'DominationRank']
"""

import re
from importlib import import_module
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from torchrank.errors import CheckpointError as CheckpointError
from torchrank.errors import ConvergenceWarning as ConvergenceWarning
from torchrank.errors import DataError as DataError
from torchrank.errors import DataWarning as DataWarning
from torchrank.errors import NotFittedError as NotFittedError
from torchrank.errors import NotPositiveDefinite as NotPositiveDefinite
from torchrank.errors import NumericalWarning as NumericalWarning

if TYPE_CHECKING:  # what `__getattr__` imports, for type checkers and editors
    from torchrank import functional as functional
    from torchrank.data.batch import Batch as Batch
    from torchrank.data.datamodule import RankingDataModule as RankingDataModule
    from torchrank.data.letor import read_letor as read_letor
    from torchrank.data.sets import RankingSet as RankingSet
    from torchrank.data.sources.tables import read_table as read_table
    from torchrank.data.sparse import SparseRows as SparseRows
    from torchrank.data.training import TrainingLists as TrainingLists
    from torchrank.data.trec import read_qrels as read_qrels
    from torchrank.data.trec import read_run as read_run
    from torchrank.data.weights import propensity_weights as propensity_weights
    from torchrank.estimators.metric import MetricEstimator as MetricEstimator
    from torchrank.estimators.ranking import RankingEstimator as RankingEstimator
    from torchrank.explanations.importance import Importance as Importance
    from torchrank.explanations.importance import permutation_importance as permutation_importance
    from torchrank.explanations.pairs import Explanation as Explanation
    from torchrank.explanations.pairs import explain as explain
    from torchrank.explanations.shapes import Shapes as Shapes
    from torchrank.explanations.shapes import shape_functions as shape_functions
    from torchrank.export import export_ranker as export_ranker
    from torchrank.export.adapters.folder import load_adapter as load_adapter
    from torchrank.export.adapters.folder import save_adapter as save_adapter
    from torchrank.export.adapters.saved import SavedAdapter as SavedAdapter
    from torchrank.export.adapters.sentence import add_to_sentence_transformer as add_to_sentence_transformer
    from torchrank.export.errors import NotExportable as NotExportable
    from torchrank.export.table import export_table as export_table
    from torchrank.functional.arrays import to_offsets as to_offsets
    from torchrank.metrics import AUC as AUC
    from torchrank.metrics import DCG as DCG
    from torchrank.metrics import NDCG as NDCG
    from torchrank.metrics import AllPairsError as AllPairsError
    from torchrank.metrics import DominationError as DominationError
    from torchrank.metrics import ExpectedReciprocalRank as ExpectedReciprocalRank
    from torchrank.metrics import HitRate as HitRate
    from torchrank.metrics import MeanAveragePrecision as MeanAveragePrecision
    from torchrank.metrics import MeanNDCG as MeanNDCG
    from torchrank.metrics import MeanReciprocalRank as MeanReciprocalRank
    from torchrank.metrics import Precision as Precision
    from torchrank.metrics import RankingMetrics as RankingMetrics
    from torchrank.metrics import Recall as Recall
    from torchrank.rankers.adapter.ranker import Adapter as Adapter
    from torchrank.rankers.adarank import AdaRank as AdaRank
    from torchrank.rankers.core.checkpoints import load as load
    from torchrank.rankers.core.evaluation import RankingEvaluation as RankingEvaluation
    from torchrank.rankers.core.fitting import mean_over_lists as mean_over_lists
    from torchrank.rankers.core.gradient import GradientRanker as GradientRanker
    from torchrank.rankers.core.ranker import Ranker as Ranker
    from torchrank.rankers.core.rounds import Certificate as Certificate
    from torchrank.rankers.core.rounds import Round as Round
    from torchrank.rankers.domination.ranker import DominationRank as DominationRank
    from torchrank.rankers.ensemble.distil import distil as distil
    from torchrank.rankers.ensemble.ranker import Ensemble as Ensemble
    from torchrank.rankers.lgmml.gmml import GMML as GMML
    from torchrank.rankers.lgmml.net import LGMMLNet as LGMMLNet
    from torchrank.rankers.lgmml.ranker import LGMML as LGMML
    from torchrank.rankers.listnet import ListNet as ListNet
    from torchrank.rankers.localrank.ranker import LocalRank as LocalRank
    from torchrank.rankers.metric.baseline import MetricBaseline as MetricBaseline
    from torchrank.rankers.metric.lowrank import LowRankMLR as LowRankMLR
    from torchrank.rankers.metric.mlr import MLR as MLR
    from torchrank.rankers.metric.mlr import RMLR as RMLR
    from torchrank.rankers.metric.svmmap import RankSVM as RankSVM
    from torchrank.rankers.metric.svmmap import SVMMap as SVMMap
    from torchrank.rankers.neural.lambdarank import LambdaRank as LambdaRank
    from torchrank.rankers.neural.ranker import NeuralRanker as NeuralRanker
    from torchrank.rankers.pamir import PAMIR as PAMIR
    from torchrank.rankers.queryknn import QueryKNN as QueryKNN
    from torchrank.rankers.random_order import RandomRanker as RandomRanker
    from torchrank.rankers.rankboost import RankBoost as RankBoost
    from torchrank.rankers.singlefeature import SingleFeature as SingleFeature
    from torchrank.rankers.transductive import TransductivePCA as TransductivePCA
    from torchrank.rankers.trees.ranker import GBDTRanker as GBDTRanker

__version__ = "0.2.0"

# each name stands above once, for type checkers and for `__getattr__`: here is where it is defined
_SOURCE = (get_data("torchrank", "__init__.py") or b"").decode("utf-8")  # also out of a zip file
_LINES = re.findall(r"^ *from (torchrank\.\S+) import (\w+) as", _SOURCE, re.MULTILINE)
EXPORTS: dict[str, str] = {name: module for module, name in _LINES if module != "torchrank.errors"}
RANKERS: dict[str, str] = {
    name: module
    for name, module in EXPORTS.items()
    if module.startswith("torchrank.rankers.") and ".core." not in module and name[0].isupper()
}

__all__ = ["RANKERS", "__version__", "functional", *(name for _, name in _LINES)]


def find_export(name: str) -> Any:
    if name == "functional":
        return import_module("torchrank.functional")
    if name not in EXPORTS:
        raise AttributeError(f"module 'torchrank' has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)


if not TYPE_CHECKING:  # a type checker would take any name for an export
    __getattr__ = find_export


def __dir__() -> list[str]:
    return __all__
