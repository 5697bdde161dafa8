"""Laws of devices: every ranker fits on one that is not the CPU, and no change adds a wait for it unseen.

The device is emulated (`device.py`). The table has the waits of a later round (or epoch) and of a later validation, on
the small lists of `rankers.py` in one batch. A wait more than the table says turns the test red: lower a number freely,
raise one only with a reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from tests.laws.cases import ROWS, batch
from tests.laws.device import DEVICE, Count, counting, emulated
from tests.laws.rankers import CASES, sets
from torchrank import Ranker
from torchrank.data.sampler import ranges
from torchrank.functional import Lists, cloud_pca, gmml_factor
from torchrank.rankers.core.fitting import Descent, Watch
from torchrank.rankers.lgmml.sampled_warp import sampled_warp

pytestmark = pytest.mark.filterwarnings("ignore")


class Waits(NamedTuple):
    """The most waits of the last round, and of the last validation."""

    round: int
    validation: int


WAITS = {
    "listnet": Waits(1, 14),
    "listnet_gradient": Waits(2, 1),
    "singlefeature": Waits(0, 15),
    "random": Waits(0, 14),
    "lambdarank": Waits(2, 1),
    "mlp_ranknet": Waits(2, 1),
    "mlp_members": Waits(2, 1),
    "resnet": Waits(2, 1),
    "dcn": Waits(2, 1),
    "gam": Waits(2, 1),
    "attention": Waits(2, 1),
    "gbdt": Waits(0, 3),
    "xgboost": Waits(0, 3),
    "gmml": Waits(24, 15),
    "gmml_queries": Waits(27, 16),
    "lgmml_similar": Waits(7, 1),
    "lgmml_soft": Waits(3, 1),
    "lgmml": Waits(2, 1),
    "lgmml_per_query": Waits(2, 1),
    "lgmml_sgd": Waits(8, 1),
    "lgmml_queries": Waits(3, 3),
    "lgmml_net": Waits(2, 1),
    "pamir": Waits(6, 1),
    "pamir_minibatches": Waits(3, 1),
    "pamir_topics": Waits(20, 1),
    "domination_lbfgs": Waits(10, 14),
    "domination_fista": Waits(33, 14),
    "domination_pooled": Waits(38, 14),
    "domination_cd": Waits(8, 14),
    "domination_blocked": Waits(6, 14),
    "domination_path": Waits(32, 1),
    "domination_topics": Waits(29, 14),
    "rankboost": Waits(1, 2),
    "adarank": Waits(1, 2),
    "queryknn": Waits(23, 14),
    "dk": Waits(23, 30),
    "local_listnet": Waits(2, 59),
    "local_shrunk": Waits(2, 18),
    "local_network": Waits(8, 9),
    "local_rankboost": Waits(4, 19),
    "mlr": Waits(5, 16),
    "mlr_diagonal": Waits(6, 16),
    "mlr_points": Waits(5, 18),
    "rmlr": Waits(6, 16),
    "rmlr_anchored": Waits(58, 3),  # a path, of which a round is a whole fit
    "lowrank_mlr": Waits(3, 1),
    "euclidean": Waits(1, 16),
    "adapter": Waits(8, 6),  # of a validation 5 for each block of the corpus
    "adapter_mlr": Waits(36, 7),  # the same
    "svmmap": Waits(4, 14),
    "svmmap_queries": Waits(4, 14),
    "ranksvm": Waits(5, 14),
    "ensemble": Waits(1, 18),
    "ensemble_queries": Waits(1, 24),
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


@pytest.mark.parametrize("name", WAITS)
def test_a_fit_on_a_device(name):
    with emulated(), recorded() as found:
        ranker = fitted(name, DEVICE)
        assert {each.device for each in (*ranker.parameters(), *ranker.buffers())} == {DEVICE}
        here = scores(ranker, name)
    apart = 2e-6 if name == "queryknn" else 1e-7  # its models are solved to a gradient of 1e-6
    torch.testing.assert_close(here, scores(fitted(name, "cpu"), name), rtol=1e-5, atol=apart)
    last, val = found.rounds[-1], found.validations[-1]
    most = WAITS[name]
    assert last.waits <= most.round, str(dict(last.waited_at))
    assert val.waits <= most.validation, dict(val.waited_at)


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
    lists = Lists.of(offsets, labels=labels)
    with emulated():
        given = (scores.to(DEVICE), labels.to(DEVICE), lists.to(DEVICE))
        with counting() as count:
            found = ROWS[row](*given)
        found = found.cpu()
    tables = sum(isinstance(option, list) for option in ROWS[row].options.values())  # which have to be copied
    assert count.waits == tables, dict(count.waited_at)
    torch.testing.assert_close(found, ROWS[row](scores, labels, offsets), rtol=1e-12, atol=1e-12, equal_nan=True)


def test_every_kind_of_ranker_is_in_the_table():
    assert {type(case.make()) for name, case in CASES.items()} == {type(CASES[name].make()) for name in WAITS}


def test_the_device_refuses_tensors_of_the_host_and_counts_waits():
    with emulated(), counting() as count:
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        with pytest.raises(RuntimeError, match=r"emulated.* and on cpu"):
            x + torch.ones(2, 3)
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()
        assert count.waits == 0
        assert x.sum().item() == 15 and (x > 2).nonzero().shape == (3, 2) and x.cpu().shape == (2, 3)
    assert count.waits == 3


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
        assert not count.one_after_the_other
        found, factors = [each.cpu() for each in found], [each.cpu() for each in factors]
    for one, other in zip(found, cloud_pca(x, offsets, 5), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    for t, factor in zip((0.5, 0.3), factors, strict=True):
        expected = gmml_factor(similar, dissimilar, t=t)
        torch.testing.assert_close(factor @ factor.mT, expected @ expected.mT, rtol=1e-7, atol=1e-9)
