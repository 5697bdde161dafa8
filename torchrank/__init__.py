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
    "GMML": "torchrank.rankers.gmml",
    "LGMML": "torchrank.rankers.lgmml",
    "LGMMLNet": "torchrank.rankers.lgmml_net",
    "DominationRank": "torchrank.rankers.domination",
    "PAMIR": "torchrank.rankers.pamir",
    "MetricBaseline": "torchrank.rankers.metric_baseline",
    "MLR": "torchrank.rankers.mlr",
    "RMLR": "torchrank.rankers.rmlr",
    "LowRankMLR": "torchrank.rankers.lowrank_mlr",
    "SVMMap": "torchrank.rankers.svmmap",
    "RankSVM": "torchrank.rankers.ranksvm",
    "LocalRank": "torchrank.rankers.localrank",
    "RankBoost": "torchrank.rankers.rankboost",
    "AdaRank": "torchrank.rankers.adarank",
    "QueryKNN": "torchrank.rankers.queryknn",
    "TransductivePCA": "torchrank.rankers.transductive",
}
EXPORTS = RANKERS | {
    "load": "torchrank.rankers.checkpoints",
    "MetricEstimator": "torchrank.estimator",
    "RankingDataModule": "torchrank.data.datamodule",
    "RankingSet": "torchrank.data.lists",
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
