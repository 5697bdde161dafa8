"""Sums over rows in chunks: one pass without lost digits, the same on any number of processes."""

import threading

import numpy as np
import pytest
import torch

from torchrank import DataError
from torchrank.data import make_transform
from torchrank.data.rows import ALONE, Chunks, Share, check_finite
from torchrank.data.transforms import TRANSFORMS, transform_rows

OFFSETS = torch.tensor([0, 5, 5, 6, 90, 200, 333])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 60)


def rows(seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(333, 6)) * [1, 1e-6, 1e6, 1, 1, 0] + [0, 0, 0, 1e9, -3e5, 0.1]
    return torch.tensor(x)


class Processes:
    """Threads that stand for processes: each calls `work(share)`, and `reduce` adds up what they bring."""

    def __init__(self, world):
        self.world, self.brought, self.gate = world, [None] * world, threading.Barrier(world, timeout=20)

    def reduce(self, rank):
        def add(tensor):
            self.brought[rank] = tensor.clone()
            self.gate.wait()
            total = sum(self.brought)
            self.gate.wait()
            return total

        return add

    def run(self, work):
        found = [None] * self.world

        def one(rank):
            try:
                found[rank] = work(Share(rank, self.world, self.reduce(rank)))
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.mark.parametrize("offsets", [OFFSETS, None], ids=["lists", "a corpus"])
def test_moments_are_those_of_extended_precision(offsets):
    x = rows()
    mean, squares = Chunks(x, offsets, "cpu", 6).moments()
    exact = x.numpy().astype(np.longdouble)
    expected = ((exact - exact.mean(0)) ** 2).sum(0)
    assert (abs(mean.numpy() - exact.mean(0).astype(float)) <= 1e-15 * x.abs().amax(0).numpy()).all()
    np.testing.assert_allclose(squares.sqrt()[:5], np.sqrt(expected[:5]).astype(float), rtol=1e-13)
    assert mean[5] == 0.1 and squares[5] == 0  # a column of equal values
    centred = exact - exact.mean(0)
    products = Chunks(x, offsets, "cpu", 6).moments(power=2)[1].numpy()
    sizes = np.sqrt(np.outer(expected, expected)).astype(float)
    assert (abs(products - (centred.T @ centred).astype(float)) <= 1e-12 * sizes).all()


@pytest.mark.parametrize("world", [2, 3, 30])
@pytest.mark.parametrize("option", [*TRANSFORMS, ["log1p", "standard"], ["log1p", "quantile"]], ids=str)
def test_a_fit_on_several_processes_is_equal_to_the_bit(option, world):
    x = rows().abs().round() if option == "singhal" else rows()
    alone = make_transform(option, 6).fit(x, OFFSETS).state_dict()
    for found in Processes(world).run(lambda share: make_transform(option, 6).fit(x, OFFSETS, share=share)):
        for name, value in found.state_dict().items():
            assert torch.equal(value, alone[name]), name


@pytest.mark.parametrize("option", ["none", "standard", "quantile", "pca"])
def test_every_process_raises_the_first_error(option):
    x = rows()
    x[300, 2], x[200, 1] = torch.nan, torch.inf
    errors = Processes(3).run(lambda share: make_transform(option, 6).fit(x, OFFSETS, share=share))
    assert all(isinstance(error, DataError) for error in errors)
    (told,) = {str(error) for error in errors}
    assert told.startswith("feature 1 (counted from 0) of row 200 is inf")


def test_each_process_reads_its_share(monkeypatch):
    read, chunk = {0: 0, 1: 0}, Chunks._chunk

    def counted(self, *given):
        rows, offsets = chunk(self, *given)
        read[self.share.rank] += len(rows)
        return rows, offsets

    monkeypatch.setattr(Chunks, "_chunk", counted)
    Processes(2).run(lambda share: make_transform("standard", 6).fit(rows(), share=share))
    assert all(count < 0.6 * 333 for count in read.values()) and sum(read.values()) >= 333


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_whose_sum_overflows_are_finite(dtype):
    large = torch.full((9, 2), torch.finfo(dtype).max, dtype=dtype)
    check_finite(large, 0)
    large[7, 1] = -torch.inf
    with pytest.raises(DataError, match=r"feature 1 \(counted from 0\) of row 107 is -inf"):
        check_finite(large, 100)


def test_applied_in_chunks_and_at_once_is_equal_to_the_bit(monkeypatch):
    for option in ("standard", "quantile", "log1p", "query_minmax", "l2"):
        x = rows().float()
        transform = make_transform(option, 6).fit(x, OFFSETS)
        found = transform_rows(x, OFFSETS, "cpu", transform)
        monkeypatch.setattr("torchrank.data.transforms.FEW", 1)
        assert torch.equal(found, transform(x, OFFSETS))
        monkeypatch.undo()


def test_quantiles_by_bisection_are_those_of_searchsorted(monkeypatch):
    x = torch.randn(3000, 5, generator=torch.Generator().manual_seed(0)).mul(3).round().double()
    transform = make_transform("quantile", 5).fit(x)
    ends = torch.tensor([[-1e300] * 5, [torch.inf] * 5], dtype=torch.float64)
    values = torch.cat([x, x + 0.3, ends]).T.contiguous()
    monkeypatch.setattr("torchrank.data.transforms.FEW", 1)
    assert torch.equal(transform._above(values), torch.searchsorted(transform.nodes, values, right=True))


def test_alone_is_the_only_process():
    total = torch.ones(2)
    assert ALONE.rank == 0 and ALONE.world == 1 and torch.equal(ALONE.reduce(total), total)
