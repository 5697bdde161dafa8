"""Pure tensor functions on flat lists and on matrices: measures, losses, clouds and metrics.

Wherever a function takes tensors it takes numpy arrays, pandas and polars columns and Python lists as well; where it
takes offsets it takes the sizes of the lists (`group=`) or the query id of each row (`qid=`). It returns tensors.
Nothing here imports more than torch and `torchrank.errors`.
"""

from torchrank.functional.arrays import to_offsets
from torchrank.functional.clouds import choose_components, cloud_pca, cloud_similarity, nearest_clouds
from torchrank.functional.conventions import CONVENTIONS, describe
from torchrank.functional.domination import domination_loss
from torchrank.functional.gaussians import cloud_gaussians, cloud_moments, gaussian_divergence
from torchrank.functional.losses import (
    LOSSES,
    approx_mrr_loss,
    approx_ndcg_loss,
    as_loss,
    bce_loss,
    gumbel,
    hinge_loss,
    lambda_loss,
    lambdarank_loss,
    listmle_loss,
    listnet_loss,
    logistic_loss,
    mse_loss,
    neural_ndcg_loss,
    ordinal_loss,
    ordinal_scores,
    pairwise_mse_loss,
    poly1_softmax_loss,
    rank_weights,
    ranknet_loss,
    soft_zero_one_loss,
    softmax_loss,
    unique_softmax_loss,
    warp_loss,
)
from torchrank.functional.losses.soft_ranks import soft_ranks
from torchrank.functional.measures import (
    all_pairs_error,
    arp,
    auc,
    average_precision,
    dcg,
    domination_error,
    err,
    hit,
    hits,
    kendall_tau,
    mean_ndcg,
    ndcg,
    opa,
    precision,
    r_precision,
    rank_biased_overlap,
    rbp,
    recall,
    reciprocal_rank,
)
from torchrank.functional.measures.evaluation import evaluate
from torchrank.functional.measures.ranked import evaluate_ranks, known_from_ranks
from torchrank.functional.memory import keep_freed_blocks
from torchrank.functional.neighbours.corpus import document_ranks, search
from torchrank.functional.neighbours.votes import knn_error
from torchrank.functional.oracles import most_violated, structured_hinge
from torchrank.functional.ragged import pad, unpad
from torchrank.functional.spd import (
    geometric_mean,
    gmml,
    gmml_factor,
    gmml_residual,
    mahalanobis,
    pair_scatter,
    project_psd,
)

keep_freed_blocks()

__all__ = [
    "CONVENTIONS",
    "LOSSES",
    "all_pairs_error",
    "approx_mrr_loss",
    "approx_ndcg_loss",
    "arp",
    "as_loss",
    "auc",
    "average_precision",
    "bce_loss",
    "choose_components",
    "cloud_gaussians",
    "cloud_moments",
    "cloud_pca",
    "cloud_similarity",
    "dcg",
    "describe",
    "document_ranks",
    "domination_error",
    "domination_loss",
    "err",
    "evaluate",
    "evaluate_ranks",
    "gaussian_divergence",
    "geometric_mean",
    "gmml",
    "gmml_factor",
    "gmml_residual",
    "gumbel",
    "hinge_loss",
    "hit",
    "hits",
    "kendall_tau",
    "knn_error",
    "known_from_ranks",
    "lambda_loss",
    "lambdarank_loss",
    "listmle_loss",
    "listnet_loss",
    "logistic_loss",
    "mahalanobis",
    "mean_ndcg",
    "most_violated",
    "mse_loss",
    "ndcg",
    "nearest_clouds",
    "neural_ndcg_loss",
    "opa",
    "ordinal_loss",
    "ordinal_scores",
    "pad",
    "pair_scatter",
    "pairwise_mse_loss",
    "poly1_softmax_loss",
    "precision",
    "project_psd",
    "r_precision",
    "rank_biased_overlap",
    "rank_weights",
    "ranknet_loss",
    "rbp",
    "recall",
    "reciprocal_rank",
    "search",
    "soft_ranks",
    "soft_zero_one_loss",
    "softmax_loss",
    "structured_hinge",
    "to_offsets",
    "unique_softmax_loss",
    "unpad",
    "warp_loss",
]
