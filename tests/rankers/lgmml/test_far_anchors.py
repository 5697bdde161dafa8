"""Scores by far anchors against differences of distances in decimal arithmetic."""

import math
from decimal import Decimal, localcontext

import numpy as np
import torch

from torchrank.rankers.lgmml.far_anchors import far_scores


def tensor(values) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


def test_far_scores_are_differences_of_distances_to_the_last_digits():
    draw = np.random.default_rng(5)
    images = draw.normal(size=(40, 3)) * 10.0 ** draw.integers(-3, 4, (40, 1))
    for reach in [1e-3, 1.0, 7.5, 1e4, 1e8, 1e12, 1e16]:
        found = far_scores(tensor(images[:, 0]), tensor((images**2).sum(1)), torch.tensor(reach, dtype=torch.float64))
        with localcontext() as context:
            context.prec = 80
            for value, image in zip(found.tolist(), images, strict=True):
                y, d0, square = Decimal(image[0]), Decimal(reach), Decimal(float((image**2).sum()))
                right = float(d0 - (d0 * d0 - 2 * d0 * y + square).sqrt())
                scale = abs(image[0]) + min((image**2).sum() / reach, math.sqrt((image**2).sum()))
                assert abs(value - right) <= 1e-13 * scale, (reach, image)


def test_far_scores_of_an_infinite_reach_are_the_part_along_the_anchor_and_others_tend_to_it():
    along, across = tensor(np.random.default_rng(6).normal(size=(2, 30)))
    squares = along**2 + across**2
    reaches = torch.tensor([1e3, 1e6, 1e12, math.inf], dtype=torch.float64)
    gaps = (far_scores(along[:, None], squares[:, None], reaches) - along[:, None]).abs().amax(0)
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] <= 1e-11
    assert gaps[3] == 0


def test_far_scores_of_the_anchor_itself_are_the_reach_and_of_the_origin_0():
    reach = torch.tensor([1e-6, 3.0, 1e10], dtype=torch.float64)
    torch.testing.assert_close(far_scores(reach, reach**2, reach), reach, rtol=1e-12, atol=0)
    assert (far_scores(torch.zeros(3).double(), torch.zeros(3).double(), reach) == 0).all()
    assert far_scores(*torch.zeros(3, 1, dtype=torch.float64)).isfinite().all()  # anchor, origin and document are one
