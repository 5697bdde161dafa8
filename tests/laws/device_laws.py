"""Laws of devices: every ranker fits on one that is not the CPU, and no change adds a wait for it unseen.

The device is emulated (`device.py`). The table has ceilings for the kernels and the waits of a later round (or epoch)
and of a later validation, on the small lists of `rankers.py` in one batch. A wait more than the table says turns the
test red: lower a ceiling freely, raise one only with a reason.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.estimate import MACHINES, Machine, estimated
from benchmarks.estimate import machine as parse_machine
from tests.laws.cases import ROWS, batch, sizes
from tests.laws.device import DEVICE, Count, counting, emulated
from tests.laws.rankers import CASES, sets
from torchrank import Ranker
from torchrank.data.sampler import ranges
from torchrank.functional import cloud_pca, gmml_factor
from torchrank.rankers.core.fitting import Descent, Watch
from torchrank.rankers.lgmml.sampled_warp import sampled_warp

pytestmark = pytest.mark.filterwarnings("ignore")


class Ceiling(NamedTuple):
    """Kernels and waits of the last round, and of the last validation."""

    kernels: int
    waits: int
    val_kernels: int
    val_waits: int


CEILINGS = {
    "listnet": Ceiling(490, 1, 180, 14),
    "listnet_gradient": Ceiling(140, 2, 180, 1),
    "singlefeature": Ceiling(320, 0, 190, 15),
    "random": Ceiling(10, 0, 190, 14),
    "lambdarank": Ceiling(270, 2, 180, 1),
    "mlp_ranknet": Ceiling(160, 2, 190, 1),
    "mlp_members": Ceiling(340, 2, 210, 1),
    "resnet": Ceiling(340, 2, 210, 1),
    "dcn": Ceiling(260, 2, 200, 1),
    "gam": Ceiling(260, 2, 200, 1),
    "attention": Ceiling(530, 2, 400, 1),
    "gbdt": Ceiling(10, 0, 200, 3),
    "xgboost": Ceiling(10, 0, 200, 3),
    "gmml": Ceiling(510, 24, 280, 15),
    "gmml_queries": Ceiling(600, 27, 320, 16),
    "lgmml_similar": Ceiling(1240, 7, 180, 1),
    "lgmml_soft": Ceiling(630, 3, 180, 1),
    "lgmml": Ceiling(510, 2, 200, 1),
    "lgmml_per_query": Ceiling(530, 2, 240, 1),
    "lgmml_sgd": Ceiling(170, 8, 200, 1),
    "lgmml_queries": Ceiling(360, 3, 300, 3),
    "lgmml_net": Ceiling(340, 2, 190, 1),
    "pamir": Ceiling(150, 6, 180, 1),
    "pamir_minibatches": Ceiling(280, 3, 180, 1),
    "pamir_topics": Ceiling(180, 20, 200, 1),
    "domination_lbfgs": Ceiling(4440, 10, 180, 14),
    "domination_fista": Ceiling(9420, 33, 180, 14),
    "domination_pooled": Ceiling(10_710, 38, 180, 14),
    "domination_cd": Ceiling(940, 8, 180, 14),
    "domination_blocked": Ceiling(640, 6, 180, 14),
    "domination_path": Ceiling(8870, 32, 180, 1),
    "domination_topics": Ceiling(8720, 29, 190, 14),
    "rankboost": Ceiling(90, 1, 190, 2),
    "adarank": Ceiling(170, 1, 190, 2),
    "queryknn": Ceiling(3350, 23, 210, 14),
    "dk": Ceiling(1940, 23, 1440, 30),
    "local_listnet": Ceiling(490, 2, 860, 59),
    "local_shrunk": Ceiling(500, 2, 410, 18),
    "local_network": Ceiling(560, 8, 390, 9),
    "local_rankboost": Ceiling(280, 4, 370, 19),
    "mlr": Ceiling(230, 5, 240, 16),
    "mlr_diagonal": Ceiling(220, 6, 240, 16),
    "mlr_points": Ceiling(200, 5, 290, 18),
    "rmlr": Ceiling(240, 6, 240, 16),
    "rmlr_anchored": Ceiling(2570, 58, 230, 3),  # a path, of which a round is a whole fit
    "lowrank_mlr": Ceiling(310, 3, 220, 1),
    "euclidean": Ceiling(10, 1, 270, 16),
    "adapter": Ceiling(650, 8, 300, 6),  # of a validation 5 for each block of the corpus
    "adapter_mlr": Ceiling(1120, 36, 290, 7),  # the same
    "svmmap": Ceiling(190, 4, 180, 14),
    "svmmap_queries": Ceiling(240, 4, 190, 14),
    "ranksvm": Ceiling(220, 5, 180, 14),
    "ensemble": Ceiling(10, 1, 450, 18),
    "ensemble_queries": Ceiling(10, 1, 760, 24),
}


class Recorded(NamedTuple):
    rounds: list[Count]
    validations: list[Count]


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Counts every round, epoch and validation of fits without Lightning."""
    found = Recorded([], [])

    def counted(function: Any, into: list[Count]) -> Any:
        def call(*arguments: Any) -> Any:
            with counting() as count:
                result = function(*arguments)
            into.append(count)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, into in (
            (Ranker, "take_round", found.rounds),
            (Descent, "epoch", found.rounds),
            (Watch, "validate", found.validations),
        ):
            patch.setattr(owner, name, counted(getattr(owner, name), into))
        yield found


def fitted(name: str, device: torch.device | str) -> Ranker:
    torch.manual_seed(0)
    case, own = CASES[name], sets(CASES[name].kind)
    return case.make().to(device).fit(own["train"], own["val"], epochs=case.epochs)


def scores(ranker: Ranker, name: str) -> torch.Tensor:
    lists = sets(CASES[name].kind)["test"].to(ranker.device)[:]
    given = {"index": lists.index, "queries": lists.queries}
    given |= {"query": lists.query} if ranker.num_topics is not None else {}
    with torch.no_grad():
        return ranker(lists.x, lists.offsets, **{key: part for key, part in given.items() if part is not None}).cpu()


@pytest.mark.parametrize("name", CEILINGS)
def test_a_fit_on_a_device(name):
    with emulated(), recorded() as found:
        ranker = fitted(name, DEVICE)
        assert {each.device for each in (*ranker.parameters(), *ranker.buffers())} == {DEVICE}
        here = scores(ranker, name)
    apart = 2e-6 if name == "queryknn" else 1e-7  # its models are solved to a gradient of 1e-6
    torch.testing.assert_close(here, scores(fitted(name, "cpu"), name), rtol=1e-5, atol=apart)
    last, val = found.rounds[-1], found.validations[-1]
    ceiling = CEILINGS[name]
    assert last.waits <= ceiling.waits, str(dict(last.waited_at))
    assert val.waits <= ceiling.val_waits, dict(val.waited_at)
    assert last.kernels <= ceiling.kernels and val.kernels <= ceiling.val_kernels


PASSES = ("listnet", "domination_lbfgs", "rankboost", "lgmml", "svmmap", "lambdarank")


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_on_a_device_reads_what_fits(name, monkeypatch):
    """Not `batch_documents`, the budget of an optimizer step; and what is found does not depend on it."""
    read: list[int] = []

    def cut(lengths, budget, first, last):
        read.append(len(found := ranges(lengths, budget, first, last)))
        return found

    for module in ("torchrank.data.training", "torchrank.rankers.core.fitting"):
        monkeypatch.setattr(f"{module}.ranges", cut)
    found = []
    for free in (2**10, 2**30):  # too little for more than batch_documents, and enough for all
        monkeypatch.setattr("torchrank.data.training.free_memory", lambda device, free=free: free)
        read.clear()
        with emulated():
            torch.manual_seed(0)
            own = sets(CASES[name].kind)
            ranker = CASES[name].make().to(DEVICE)
            ranker.fit(own["train"], own["val"], epochs=CASES[name].epochs, batch_documents=8)
            found.append(scores(ranker, name))
        assert (max(read) > 1) == (free < 2**20), read
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("row", ROWS)
def test_functions_find_the_same_on_a_device(row):
    scores, labels, offsets = batch(seed=3)
    taken = inspect.signature(ROWS[row].function).parameters
    known = {name: size for name, size in sizes(labels, offsets).items() if name in taken}
    with emulated():
        given = (scores.to(DEVICE), labels.to(DEVICE), offsets.to(DEVICE))
        with counting() as count:
            found = ROWS[row](*given, **known)
        found = found.cpu()
    tables = sum(isinstance(option, list) for option in ROWS[row].options.values())  # which have to be copied
    assert count.waits == tables, dict(count.waited_at)
    torch.testing.assert_close(
        found, ROWS[row](scores, labels, offsets, **known), rtol=1e-12, atol=1e-12, equal_nan=True
    )


def test_every_kind_of_ranker_is_in_the_table():
    assert {type(case.make()) for name, case in CASES.items()} == {type(CASES[name].make()) for name in CEILINGS}


def test_the_device_refuses_tensors_of_the_host_and_counts_waits():
    with emulated(), counting() as count:
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        with pytest.raises(RuntimeError, match=r"emulated.* and on cpu"):
            x + torch.ones(2, 3)
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()
        assert count.waits == 0
        assert x.sum().item() == 15 and (x > 2).nonzero().shape == (3, 2) and x.cpu().shape == (2, 3)
    assert count.waits == 3 and count.kernels >= 4


@pytest.mark.parametrize("nonneg", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_sampled_warp_hardly_waits_for_a_device(own, nonneg):
    generator = torch.Generator().manual_seed(4)
    offsets = torch.tensor([0, 30, 31, 31, 70, 90])
    features, labels = torch.randn(90, 4, generator=generator).double(), torch.randint(4, (90,), generator=generator)
    weights = torch.rand(5, 4, generator=generator).double() if own else torch.rand(4, generator=generator).double()
    steps = torch.randint(5, (300,), generator=generator)
    given = {"lr": torch.full((300,), 0.05), "nonneg": nonneg, "margin": 0.2}
    here = sampled_warp(features, labels, offsets, weights, steps, generator=torch.Generator().manual_seed(1), **given)
    with emulated():
        there = [each.to(DEVICE) for each in (features, labels, offsets, weights, steps)]
        with counting() as count:
            found = sampled_warp(*there, generator=torch.Generator().manual_seed(1), **given)
        found = found.cpu()
    assert count.waits <= 6, dict(count.waited_at)
    torch.testing.assert_close(found, here, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found, weights)


def test_many_eigenproblems_above_32_columns_are_solved_on_the_host():
    generator = torch.Generator().manual_seed(5)
    x, offsets = torch.randn(300, 40, generator=generator).double(), torch.arange(0, 301, 60)
    root = torch.randn(4, 40, 40, generator=generator).double()
    similar, dissimilar = (root @ root.mT + torch.eye(40).double() * size for size in (1.0, 3.0))
    with emulated(), counting() as count:
        found = cloud_pca(x.to(DEVICE), offsets.to(DEVICE), 5)
        factors = [gmml_factor(similar.to(DEVICE), dissimilar.to(DEVICE), t=t) for t in (0.5, 0.3)]
        assert max(kernels for kernels, *_ in count.work) < 20  # none of them one after the other
        found, factors = [each.cpu() for each in found], [each.cpu() for each in factors]
    for one, other in zip(found, cloud_pca(x, offsets, 5), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    for t, factor in zip((0.5, 0.3), factors, strict=True):
        expected = gmml_factor(similar, dissimilar, t=t)
        torch.testing.assert_close(factor @ factor.mT, expected @ expected.mT, rtol=1e-7, atol=1e-9)


def test_the_estimate_is_a_roofline():
    machine = Machine(bandwidth=1e12, float32=1e13, float64=1e12)
    count = Count(waits=2, work=[(1, 10**9, 1.0, "float32"), (3, 10, 1.0, "float32"), (1, 10, 5e9, "float64")])
    assert machine.seconds(count) == pytest.approx(1e-3 + 3 * 5e-6 + 5e-3 + 2 * 15e-6)
    assert parse_machine("H100=2.7,50,26") == ("H100", Machine(2.7e12, 50e12, 26e12))
    with pytest.raises(ValueError, match="a machine is NAME=bandwidth,f32,f64"):
        parse_machine("H100=2.7")
    lines = list(estimated(["listnet"], {"A100": MACHINES["A100"]}, 0.03))
    assert len(lines) == 4 and lines[2].startswith("| listnet | round | ")
