"""Rows that processes make together: threads stand for them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from torchrank import RankingSet
from torchrank.data import make_transform
from torchrank.data.rows import Share
from torchrank.data.transforms import shared
from torchrank.errors import DataError


def together(world, function):
    """`function(share)` in as many threads as there would be processes."""
    barrier, given = threading.Barrier(world), [None] * world

    def reduce(tensor, rank):
        given[rank] = tensor
        barrier.wait(timeout=20)
        total = torch.stack(given).sum(0)
        barrier.wait(timeout=20)
        return total

    shares = [Share(rank, world, partial(reduce, rank=rank)) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        return [each.result() for each in [pool.submit(function, share) for share in shares]]


def lists(rows=5000, width=130):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator)
    return RankingSet(x, torch.ones(rows), torch.arange(0, rows + 1, 50), queries=x[: rows // 50])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["standard", "quantile", "pca"])
def test_the_rows_are_those_of_one_process_in_one_memory(name, world):
    given, transform = lists(), make_transform(name, 130)
    transform.fit(given.x, given.offsets)
    alone = given.to("cpu", transform)
    found = together(world, lambda share: given.to("cpu", transform, share=share))
    for each in found:
        assert torch.equal(each.x, alone.x) and torch.equal(each.queries, alone.queries)
    found[0].x[7] = 5.0
    assert all((each.x[7] == 5.0).all() for each in found)


def test_without_a_place_every_process_has_its_own(monkeypatch, tmp_path):
    given, transform = lists(500), make_transform("log1p", 130)
    monkeypatch.setattr(shared, "_places", lambda number: iter([tmp_path / "no" / str(number)]))
    one, other = together(2, lambda share: given.to("cpu", transform, share=share))
    assert torch.equal(one.x, other.x) and torch.equal(one.x, given.to("cpu", transform).x)
    assert one.x.data_ptr() != other.x.data_ptr()


def test_no_file_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(shared, "_places", lambda number: iter([tmp_path / f"rows-{number}"]))
    one, other = together(2, lambda share: shared.shared_rows(4, 3, share))
    one.fill_(2.0)
    assert (other == 2.0).all() and not list(tmp_path.iterdir())


def test_on_two_machines_none_uses_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(shared, "_places", lambda number: iter([tmp_path / f"rows-{number}"]))
    opened, turn = shared._opened, iter([True, False])
    monkeypatch.setattr(shared, "_opened", lambda *given: opened(*given) if next(turn) else None)
    assert together(2, lambda share: shared.shared_rows(4, 3, share)) == [None, None]
    assert not list(tmp_path.iterdir())


def test_a_bad_row_is_told_alike_in_all_processes():
    given = lists(9000)
    given.x[8999, 3] = torch.nan

    def check(share):
        with pytest.raises(DataError) as error:
            given.check_rows(share)
        return str(error.value)

    one, other = together(2, check)
    assert one == other and "feature 3" in one and "row 8999" in one


def test_the_first_process_makes_the_outline_for_all():
    given = lists(500)
    assert together(3, given.outline) == [given.outline()] * 3
