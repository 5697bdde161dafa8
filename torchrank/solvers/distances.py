"""Distances between clouds under one name: by directions, by moments, and as Gaussians.

The columns of Figures 1, 9 and 10 of Banerjee, Dubey, Machchhar & Chakrabarti 2009.
"""

import torch
from torch import Tensor

from torchrank.functional.clouds import cloud_pca, cloud_similarity
from torchrank.functional.gaussians import DIVERGENCES, cloud_gaussians, cloud_moments, gaussian_divergence
from torchrank.functional.ragged import wide
from torchrank.functional.ranking import result_dtype

MOMENTS = ("mean", "variance", "skew")
DISTANCES = ("pca", *MOMENTS, *DIVERGENCES)


@torch.no_grad()
def cloud_distances(
    x: Tensor, offsets: Tensor, x_v: Tensor, offsets_v: Tensor, *, kind: str = "pca", components: int = 5
) -> Tensor:
    """Distances of the clouds of all lists of `x (N, D)` to all lists of `x_v (N', D)`, `(Q, Q')`.

    `pca`: 1 - `cloud_similarity` of the first `components` directions. `mean`, `variance`, `skew`: Euclidean, of what
    `cloud_moments` gives. `jeffreys`, `bhattacharyya`: `gaussian_divergence`; for the Bhattacharyya column of Figure 1,
    which is 1 - K, take 1 - exp(-distance). A list of one document has no direction: 1 from all others and from itself.

    >>> x, offsets = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0], [8.0, 9.0]]), torch.tensor([0, 2, 4])
    >>> [cloud_distances(x, offsets, x, offsets, kind=kind)[0, 1].item() for kind in ("pca", "mean")]
    [0.0, 12.041594505310059]
    """
    if kind not in DISTANCES:
        raise ValueError(f"kind is {kind!r}, choose one of {list(DISTANCES)}")
    same = x is x_v and offsets is offsets_v
    if kind == "pca":
        u, _, _, ranks = cloud_pca(x, offsets, components)
        v, _, _, ranks_v = (u, None, None, ranks) if same else cloud_pca(x_v, offsets_v, components)
        return 1 - cloud_similarity(u, ranks, v, ranks_v)
    if kind in MOMENTS:
        place, dtype = MOMENTS.index(kind), result_dtype(x)
        found = wide(cloud_moments(x, offsets)[place]), wide(cloud_moments(x_v, offsets_v)[place])
        return torch.cdist(*found, compute_mode="donot_use_mm_for_euclid_dist").to(dtype)
    gaussians = cloud_gaussians(x, offsets)
    return gaussian_divergence(*gaussians, *(gaussians if same else cloud_gaussians(x_v, offsets_v)), kind=kind)
