"""torchrank: learning to rank and metric learning on PyTorch.

Rankers are imported when they are first asked for, so that `import torchrank.functional` costs torch alone.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

RANKERS = {
    "NeuralRanker": "torchrank.rankers.neural",
    "ListNet": "torchrank.rankers.listnet",
    "LambdaRank": "torchrank.rankers.lambdarank",
    "SingleFeature": "torchrank.rankers.singlefeature",
    "GBDTRanker": "torchrank.rankers.gbdt",
    "GMML": "torchrank.rankers.lgmml.gmml",
    "LGMML": "torchrank.rankers.lgmml.ranker",
    "LGMMLNet": "torchrank.rankers.lgmml.net",
    "DominationRank": "torchrank.rankers.domination.ranker",
    "PAMIR": "torchrank.rankers.pamir",
    "MetricBaseline": "torchrank.rankers.metric.baseline",
    "MLR": "torchrank.rankers.metric.mlr",
    "RMLR": "torchrank.rankers.metric.rmlr",
    "LowRankMLR": "torchrank.rankers.metric.lowrank",
    "SVMMap": "torchrank.rankers.metric.svmmap",
    "RankSVM": "torchrank.rankers.metric.ranksvm",
    "LocalRank": "torchrank.rankers.localrank.ranker",
    "RankBoost": "torchrank.rankers.rankboost",
    "AdaRank": "torchrank.rankers.adarank",
    "QueryKNN": "torchrank.rankers.queryknn",
    "TransductivePCA": "torchrank.rankers.transductive",
}
EXPORTS = RANKERS | {
    "load": "torchrank.rankers.core.checkpoints",
    "MetricEstimator": "torchrank.estimator",
    "RankingDataModule": "torchrank.data.datamodule",
    "RankingSet": "torchrank.data.sets",
    "Batch": "torchrank.data.batch",
    "SparseRows": "torchrank.data.sparse",
}

__all__ = ["RANKERS", "__version__", *EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module 'torchrank' has no attribute {name!r}")
    return vars(import_module(EXPORTS[name]))[name]


def __dir__() -> list[str]:
    return __all__
