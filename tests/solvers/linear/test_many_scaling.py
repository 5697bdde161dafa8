"""Models of their own lists start from the Hessians of ListNet at weights 0."""

import numpy as np
import torch

from torchrank.functional.arrays import to_offsets
from torchrank.solvers.linear.lbfgs import many_lbfgs
from torchrank.solvers.linear.many_models import JoinedLists, MemberLists, inverse_scaling, solve_many_linear


def some_lists(num_lists=8, width=4):
    draw = torch.Generator().manual_seed(0)
    offsets = to_offsets(torch.randint(2, 7, (num_lists,), generator=draw))
    size = int(offsets[-1])
    x = torch.randn(size, width, generator=draw) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + 5
    labels = torch.arange(size).double() % 3
    return JoinedLists(x, labels, offsets, torch.arange(num_lists) + 2, torch.tensor(float(num_lists)))


def test_moments_are_sums_of_covariances():
    lists, members = some_lists(), torch.tensor([[2, 5, -1], [3, 4, 9], [0, 1, -1]])  # lists 0 and 1 are not here
    found = MemberLists(lists, members, "listnet").moments()
    for model, numbers in zip(found, members.tolist(), strict=True):
        expected, bounds = np.zeros((4, 4)), lists.offsets.tolist()
        for number in (each - 2 for each in numbers if each >= 2):
            rows = lists.x[bounds[number] : bounds[number + 1]].double().numpy()
            expected += np.cov(rows.T, bias=True)
        np.testing.assert_allclose(model, expected, rtol=1e-9, atol=1e-9)


def test_a_feature_that_never_varies_needs_no_penalty():
    members = torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9], [0, -1, -1, -1]])
    found = solve_many_linear(some_lists(), 3, members=members, l2=1e-3)
    assert (found.max_gradient <= 1e-6).all() and (found.weight[2] == 0).all()
    inverse = inverse_scaling(torch.zeros(1, 3, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    assert inverse(torch.ones(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)).isfinite().all()


def test_with_the_inverse_hessians_an_uneven_bowl_takes_few_evaluations():
    hessian, counts = torch.logspace(-1, 2, 30, dtype=torch.float64), []
    for scaling in ({}, {"scaling": lambda vectors, numbers: vectors / hessian}):
        count = [0]

        def bowl(points, numbers, count=count):
            count[0] += 1
            return (hessian * points * points).sum(1) / 2, hessian * points

        found = many_lbfgs(bowl, torch.ones(1, 30, dtype=torch.float64), **scaling)
        assert float(found.max_gradient) <= 1e-6
        counts.append(count[0])
    assert counts[1] < 15 < counts[0]
