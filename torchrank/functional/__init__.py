"""Pure tensor functions on flat lists and on matrices: measures, losses, clouds and metrics.

Wherever a function takes tensors it takes numpy arrays, pandas and polars columns and Python lists as well; where it
takes offsets it takes a `Lists`, the sizes of the lists (`group=`), the query id of each row (`qid=`) or padded tensors
with their `mask=`. It returns tensors. Nothing here imports more than torch, numpy and `torchrank.errors`.

Each name stands here once. A measure is here as soon as it is in the table `MEASURES`; its line is for type checkers.
"""

from types import ModuleType as _Module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from torchrank.functional.arrays import to_offsets as to_offsets
from torchrank.functional.autograd import derivatives as derivatives
from torchrank.functional.clouds import choose_components as choose_components
from torchrank.functional.clouds import cloud_gaussians as cloud_gaussians
from torchrank.functional.clouds import cloud_moments as cloud_moments
from torchrank.functional.clouds import cloud_pca as cloud_pca
from torchrank.functional.clouds import cloud_similarity as cloud_similarity
from torchrank.functional.clouds import gaussian_divergence as gaussian_divergence
from torchrank.functional.clouds import nearest_clouds as nearest_clouds
from torchrank.functional.conventions import CONVENTIONS as CONVENTIONS
from torchrank.functional.conventions import describe as describe
from torchrank.functional.corpus import document_ranks as document_ranks
from torchrank.functional.corpus import search as search
from torchrank.functional.lists import Lists as Lists
from torchrank.functional.losses import LOSSES as LOSSES
from torchrank.functional.losses import approx_mrr_loss as approx_mrr_loss
from torchrank.functional.losses import approx_ndcg_loss as approx_ndcg_loss
from torchrank.functional.losses import as_loss as as_loss
from torchrank.functional.losses import bce_loss as bce_loss
from torchrank.functional.losses import domination_loss as domination_loss
from torchrank.functional.losses import gumbel as gumbel
from torchrank.functional.losses import hinge_loss as hinge_loss
from torchrank.functional.losses import lambda_loss as lambda_loss
from torchrank.functional.losses import lambdarank_loss as lambdarank_loss
from torchrank.functional.losses import listmle_loss as listmle_loss
from torchrank.functional.losses import listnet_loss as listnet_loss
from torchrank.functional.losses import logistic_loss as logistic_loss
from torchrank.functional.losses import mse_loss as mse_loss
from torchrank.functional.losses import neural_ndcg_loss as neural_ndcg_loss
from torchrank.functional.losses import ordinal_loss as ordinal_loss
from torchrank.functional.losses import ordinal_scores as ordinal_scores
from torchrank.functional.losses import pairwise_mse_loss as pairwise_mse_loss
from torchrank.functional.losses import poly1_softmax_loss as poly1_softmax_loss
from torchrank.functional.losses import rank_weights as rank_weights
from torchrank.functional.losses import ranknet_loss as ranknet_loss
from torchrank.functional.losses import soft_zero_one_loss as soft_zero_one_loss
from torchrank.functional.losses import softmax_loss as softmax_loss
from torchrank.functional.losses import unique_softmax_loss as unique_softmax_loss
from torchrank.functional.losses import warp_loss as warp_loss
from torchrank.functional.losses.soft import soft_ranks as soft_ranks
from torchrank.functional.measures import MEASURES as MEASURES
from torchrank.functional.measures.binary import average_precision as average_precision
from torchrank.functional.measures.binary import hit as hit
from torchrank.functional.measures.binary import hits as hits
from torchrank.functional.measures.binary import knn_error as knn_error
from torchrank.functional.measures.binary import precision as precision
from torchrank.functional.measures.binary import r_precision as r_precision
from torchrank.functional.measures.binary import rbp as rbp
from torchrank.functional.measures.binary import recall as recall
from torchrank.functional.measures.binary import reciprocal_rank as reciprocal_rank
from torchrank.functional.measures.evaluation import evaluate as evaluate
from torchrank.functional.measures.evaluation import evaluate_ranks as evaluate_ranks
from torchrank.functional.measures.evaluation import known_from_ranks as known_from_ranks
from torchrank.functional.measures.graded import arp as arp
from torchrank.functional.measures.graded import dcg as dcg
from torchrank.functional.measures.graded import err as err
from torchrank.functional.measures.graded import mean_ndcg as mean_ndcg
from torchrank.functional.measures.graded import ndcg as ndcg
from torchrank.functional.measures.pairs import all_pairs_error as all_pairs_error
from torchrank.functional.measures.pairs import auc as auc
from torchrank.functional.measures.pairs import domination_error as domination_error
from torchrank.functional.measures.pairs import kendall_tau as kendall_tau
from torchrank.functional.measures.pairs import opa as opa
from torchrank.functional.measures.pairs import rank_biased_overlap as rank_biased_overlap
from torchrank.functional.oracles import most_violated as most_violated
from torchrank.functional.oracles import structured_hinge as structured_hinge
from torchrank.functional.ragged import pad as pad
from torchrank.functional.ragged import unpad as unpad
from torchrank.functional.spd import geometric_mean as geometric_mean
from torchrank.functional.spd import gmml as gmml
from torchrank.functional.spd import gmml_factor as gmml_factor
from torchrank.functional.spd import gmml_residual as gmml_residual
from torchrank.functional.spd import mahalanobis as mahalanobis
from torchrank.functional.spd import pair_scatter as pair_scatter
from torchrank.functional.spd import project_psd as project_psd

_own = {name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _Module)}
__all__ = sorted(_own | {row.function.__name__ for row in MEASURES.values()})


if not _TYPE_CHECKING:  # a type checker would take any name for a measure

    def __getattr__(name: str) -> _Any:
        for row in MEASURES.values():
            if row.function.__name__ == name:
                return row.function
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
