"""Products of float32 rows with float64 weights, in blocks: those of a converted copy of all rows."""

import pytest
import torch

from torchrank.data.batch import make_batch
from torchrank.data.rows import CACHED, wide_blocks
from torchrank.solvers.linear.scores import add_gradient, column_sums, entry_scores, row_products

MOST = 4 * CACHED  # numbers that one thread converts at once
SHAPES = {  # more numbers than that, with every kind of last block
    f"{width} columns, {rest:+d}": (MOST // width // 64 * 64 + 64 + rest, width)
    for width in (1, 7, 136, 700)
    for rest in (0, 1, 2, 33, 63)
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("columns", [(), (1,), (3,)], ids=["a vector", "a column", "columns"])
def test_products_are_those_of_converted_rows(name, columns):
    count, width = SHAPES[name]
    x = drawn(count, width) * 10 ** drawn(width)
    weight, slopes = (drawn(size, *columns, seed=1).double() for size in (width, count))
    wide = x.double()
    assert torch.equal(row_products(x, weight), wide @ weight)
    sizes = wide.abs().T @ slopes.abs()
    assert ((column_sums(x, slopes) - wide.T @ slopes).abs() <= 1e-14 * sizes).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_blocks_are_the_rows(dtype):
    x = drawn(MOST // 100 + 101, 100).to(dtype)
    found = [(place, block.clone()) for place, block in wide_blocks(x, torch.float64)]
    assert len(found) > 1
    assert [place.start for place, _ in found[1:]] == [place.stop for place, _ in found[:-1]]
    assert torch.equal(torch.cat([block for _, block in found]), x.double())
    assert all(len(block) > 1 and block.numel() <= CACHED + 100 for _, block in found)


def test_rows_that_have_the_dtype_are_not_copied():
    x = drawn(2, MOST).double()
    ((_, block),) = wide_blocks(x, torch.float64)
    assert block.data_ptr() == x.data_ptr()


def test_no_rows():
    empty = torch.zeros(0, 4)
    assert row_products(empty, torch.ones(4).double()).shape == (0,)
    assert torch.equal(column_sums(empty, torch.ones(0, 2).double()), torch.zeros(4, 2).double())


@pytest.mark.parametrize("per_topic", [False, True])
def test_scores_and_gradients_of_many_rows(per_topic):
    count, width, topics = MOST // 20 + 65, 20, 5
    x, weight, slopes = drawn(count, width), drawn(topics, width, seed=1).double(), drawn(count, seed=2).double()
    bounds = torch.linspace(0, count, topics + 1).long()
    batch = make_batch(x, torch.zeros(count), bounds, query=torch.tensor([3, 1, 4, 0, 2]))
    own = batch.query.repeat_interleave(bounds.diff()) * per_topic
    scores = entry_scores(batch, weight, per_topic)
    torch.testing.assert_close(scores, (x.double() * weight[own]).sum(1), rtol=1e-13, atol=1e-13)
    found = torch.zeros_like(weight)
    add_gradient(batch, slopes, found, per_topic)
    expected = torch.zeros_like(weight).index_add_(0, own, x.double() * slopes[:, None])
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_a_gradient_in_the_rows_or_weights_goes_through():
    x, weight = drawn(MOST // 8 + 1, 8).requires_grad_(), drawn(8, seed=1).double().requires_grad_()
    row_products(x, weight).sum().backward()
    torch.testing.assert_close(x.grad[0], weight.detach().float())
    torch.testing.assert_close(weight.grad, x.detach().double().sum(0))


def test_one_row_of_many_numbers():
    x, weight, slope = drawn(1, MOST + 3), drawn(MOST + 3, seed=1).double(), torch.tensor([2.0]).double()
    assert torch.equal(row_products(x, weight), x.double() @ weight)
    assert torch.equal(column_sums(x, slope), 2 * x[0].double())
