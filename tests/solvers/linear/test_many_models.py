"""Many linear models at once against loops over models, lists and pairs, minimised one by one by scipy."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import numpy as np
import pytest
import torch

from tests.reference.linear import minimised, objective
from torchrank.data.batch import make_batch
from torchrank.solvers.linear.many_models import AllLists, MemberLists, join_lists, solve_many_linear

FEATURES = 4


def draw(seed, num_lists=9, real=False):
    """Lists of 0..7 documents, among them one without documents, one with one document and one with one label."""
    random = np.random.default_rng(seed)
    lengths = np.append(random.integers(2, 8, num_lists - 3), [0, 1, 5])
    offsets = np.concatenate([[0], lengths.cumsum()])
    x = random.normal(size=(offsets[-1], FEATURES))
    labels = random.integers(0, 4, len(x)).astype(float)
    if real:
        labels = labels / 2 - 0.3
    labels[-5:] = labels[-1]
    return x, labels, offsets


def joined(x, labels, offsets, cuts=(0, 4, 9)):
    """The lists as several batches."""
    batches = []
    for a, b in pairwise(cuts):
        rows = slice(offsets[a], offsets[b])
        parts = (torch.tensor(part) for part in (x[rows], labels[rows], offsets[a : b + 1] - offsets[a]))
        batches.append(make_batch(*parts, query=torch.arange(a, b)))
    return join_lists(batches)


@pytest.mark.parametrize("loss", ["listnet", "ranksvm"])
@pytest.mark.parametrize("real", [False, True])
def test_models_of_their_own_lists_are_those_of_scipy(loss, real):
    lists = draw(1, real=real)
    members = torch.tensor([[0, 1, 2, 3], [5, 2, -1, -1], [7, 8, 4, 0], [6, 7, 8, -1]])
    found = solve_many_linear(joined(*lists), 4, loss=loss, l2=0.1, members=members, tolerance=1e-9)
    for m, row in enumerate(members.tolist()):
        weight, value = minimised(*lists, [q for q in row if q >= 0], loss, 0.1)
        np.testing.assert_allclose(found.weight[m].numpy(), weight, atol=2e-6)
        assert found.value[m] == pytest.approx(value, abs=1e-11)
    assert found.max_gradient.max() <= 1e-9 and found.used.tolist() == [4, 2, 2, 0]
    assert (found.weight[3] == 0).all()  # lists with one label only


@pytest.mark.parametrize("loss", ["listnet", "ranksvm"])
def test_models_with_a_basis_are_those_of_scipy(loss):
    lists, random = draw(2), np.random.default_rng(0)
    basis = random.normal(size=(5, 2, FEATURES))
    basis[3, 1] = 0  # a cloud of rank 1
    found = solve_many_linear(joined(*lists), 5, loss=loss, l2=0.05, basis=torch.tensor(basis), tolerance=1e-9)
    for m in range(5):
        weight, value = minimised(*lists, range(9), loss, 0.05, basis[m])
        np.testing.assert_allclose(found.weight[m].numpy(), weight, atol=2e-6)
        assert found.value[m] == pytest.approx(value, abs=1e-11)
    assert found.used.tolist() == [6] * 5


@pytest.mark.parametrize("loss", ["listnet", "ranksvm"])
def test_sums_are_those_of_a_loop_and_gradients_those_of_differences(loss):
    """At points far away too, where exponentials overflow."""
    lists = draw(3)
    weight = torch.tensor(np.random.default_rng(1).normal(size=(3, FEATURES))) * torch.tensor([[1.0], [3.0], [3e3]])
    members, numbers = torch.arange(9).expand(3, 9).contiguous(), torch.arange(3)
    for source in (AllLists(joined(*lists), loss, 3), MemberLists(joined(*lists), members, loss)):
        total, gradient = source.sums(weight, numbers)
        for m, w in enumerate(weight.numpy()):
            assert total[m] == pytest.approx(9 * objective(w, *lists, range(9), loss, 0, np.eye(FEATURES)), rel=1e-12)
            for d in range(FEATURES):
                step = 1e-5 * np.eye(FEATURES)[d]
                high, low = (9 * objective(w + s * step, *lists, range(9), loss, 0, np.eye(FEATURES)) for s in (1, -1))
                assert gradient[m, d] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss", ["listnet", "ranksvm"])
def test_more_models_and_documents_than_are_computed_at_once(loss):
    """Among the lists one of 200 documents; more models than are solved at once; batches of one list."""
    x, labels, offsets = draw(4, num_lists=120)
    random = np.random.default_rng(0)
    x, labels = np.concatenate([x, random.normal(size=(200, FEATURES))]), np.append(labels, random.integers(0, 4, 200))
    offsets = np.append(offsets, len(x))
    basis = torch.tensor(random.normal(size=(600, 2, FEATURES)))
    options = {"loss": loss, "l2": 0.05, "tolerance": 1e-9}
    many = solve_many_linear(joined(x, labels, offsets, cuts=(0, 1, 2, 121)), 600, basis=basis, **options)
    few = solve_many_linear(joined(x, labels, offsets, cuts=(0, 121)), 3, basis=basis[[0, 300, 599]], **options)
    for one, other in zip(many, few, strict=True):
        torch.testing.assert_close(one[[0, 300, 599]], other, rtol=1e-8, atol=1e-8)


def test_models_of_so_many_members_that_one_is_solved_at_once():
    lists, members = joined(*draw(4)), torch.tensor([[0, 1, 5], [2, 3, 4], [5, 6, 0]])
    padded = torch.nn.functional.pad(members, (0, 2**21), value=-1)
    for one, other in zip(*(solve_many_linear(lists, 3, members=given) for given in (members, padded)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_all_lists_as_members_are_all_lists():
    lists = joined(*draw(5))
    own = solve_many_linear(lists, 2, members=torch.arange(9).expand(2, 9), tolerance=1e-9)
    shared = solve_many_linear(lists, 2, tolerance=1e-9)
    torch.testing.assert_close(own.weight, shared.weight, rtol=1e-8, atol=1e-8)


def test_the_lists_of_two_processes_add_up():
    """Each process in a thread of its own; they meet in the sums."""
    lists, barrier, slots = draw(6), Barrier(2), [None, None]
    members = torch.tensor([[0, 1, 8], [2, 5, 6], [3, 4, -1]])

    def process(rank):
        def reduce(sums):
            slots[rank] = sums
            barrier.wait()
            total = slots[0] + slots[1]
            barrier.wait()
            return total

        x, labels, offsets = lists
        a, b = ((0, 3), (3, 9))[rank]
        rows = slice(offsets[a], offsets[b])
        parts = (torch.tensor(part) for part in (x[rows], labels[rows], offsets[a : b + 1] - offsets[a]))
        mine = join_lists([make_batch(*parts, query=torch.arange(a, b))], reduce)
        return [solve_many_linear(mine, 3, l2=0.1, members=m, reduce=reduce) for m in (members, None)]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(process, (0, 1))
    for m, mine, theirs in zip((members, None), one, two, strict=True):
        alone = solve_many_linear(joined(*lists), 3, l2=0.1, members=m)
        for a, b, c in zip(alone, mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
            assert torch.equal(b, c)


def test_wrong_options_are_refused():
    lists = joined(*draw(0))
    with pytest.raises(ValueError, match="unknown loss='hinge': choose one of listnet, ranksvm"):
        solve_many_linear(lists, 1, loss="hinge")
    with pytest.raises(ValueError, match="l2 must be >= 0, got -1"):
        solve_many_linear(lists, 1, l2=-1)


def test_inference_mode_and_no_models():
    lists = joined(*draw(0))
    with torch.inference_mode():
        found = solve_many_linear(lists, 1, l2=0.1)
        assert found.max_gradient.max() <= 1e-6
        for members in (None, torch.zeros(0, 3, dtype=torch.int64)):
            assert solve_many_linear(lists, 0, members=members).weight.shape == (0, FEATURES)
