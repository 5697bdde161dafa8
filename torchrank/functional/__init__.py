"""Pure tensor functions on flat lists and on matrices: measures, losses, clouds and metrics.

Wherever a function takes tensors it takes numpy arrays, pandas and polars columns and Python lists as well; where it
takes offsets it takes `Lists`, the sizes of the lists (`group=`), the query id of each row (`qid=`), or padded tensors
with a `mask=`. It returns tensors.
"""

from torchrank.functional.arrays import to_offsets
from torchrank.functional.autograd import derivatives
from torchrank.functional.clouds.directions import choose_components, cloud_pca, cloud_similarity, nearest_clouds
from torchrank.functional.clouds.gaussians import cloud_gaussians, cloud_moments, gaussian_divergence
from torchrank.functional.conventions import CONVENTIONS, MEASURES, describe
from torchrank.functional.lists import Lists
from torchrank.functional.losses import *
from torchrank.functional.losses.soft_ranks import soft_ranks
from torchrank.functional.measures.binary import *
from torchrank.functional.measures.evaluation import *
from torchrank.functional.measures.graded import *
from torchrank.functional.measures.pairs import *
from torchrank.functional.measures.votes import *
from torchrank.functional.neighbours.corpus import document_ranks, search
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
