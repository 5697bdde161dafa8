"""DominationRank by coordinate descent: the minimum of the other solvers, for every form of the data; resume."""

from itertools import pairwise

import pytest
import torch

from tests.rankers.small import FEATURES, data, trainer
from tests.rankers.test_pamir import WORDS, topic_data
from torchrank import DominationRank

DESCENTS = [
    {"solver": "cd"},
    {"solver": "cd", "order": "random", "seed": 3},
    {"solver": "cd", "bound": "square"},
    {"solver": "blocked", "block": 2},
]
NAMES = ["sequential", "random", "square", "blocked"]


class Values:
    """The objective after every round, in place of a logger."""

    def __init__(self, ranker):
        self.found, report = [], ranker._report
        ranker._report = lambda value, *rest: (self.found.append(value), report(value, *rest))


def fit(folder, module, num_features, tolerance=1e-3, **options):
    ranker = DominationRank(num_features, tolerance=tolerance, transform=None, **{"rounds": 400} | options)
    values = Values(ranker)
    settings = {"monitor": None, "check_val_every_n_epoch": 1000}
    trainer(folder, ranker.rounds, **settings).fit(ranker, datamodule=module)
    return ranker, values.found


@pytest.mark.parametrize("penalty", [{"l1": 0.0, "l2": 4.0}, {"l1": 6.0, "l2": 1.0}])
@pytest.mark.parametrize("descent", DESCENTS, ids=NAMES)
def test_the_same_minimum_as_by_the_other_solvers(tmp_path, descent, penalty):
    best, values = fit(tmp_path / "a", data(), FEATURES, 1e-7, **penalty)
    found, descending = fit(tmp_path / "b", data(), FEATURES, **penalty, **descent)
    assert found.converged and descending[-1] == pytest.approx(values[-1], rel=1e-7)
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(descending))
    torch.testing.assert_close(found.weight, best.weight, rtol=0, atol=1e-3)
    assert torch.equal(found.weight == 0, best.weight == 0)


@pytest.mark.parametrize(
    ("shared", "sparse", "options"),
    [
        (True, True, {}),
        (False, True, {"margin": 0.5, "negatives": 0.5}),
        (True, False, {}),
        (True, True, {"induction": 9}),
    ],
)
def test_topics_in_every_form(tmp_path, shared, sparse, options):
    options = {"per_topic": True, "l1": 1.0, "l2": 0.5, **options}
    best, values = fit(tmp_path / "a", topic_data(sparse=sparse, shared=shared), WORDS, 1e-6, **options)
    for descent in (DESCENTS[0], DESCENTS[3]):
        module = topic_data(sparse=sparse, shared=shared, batch_documents=70)
        found, descending = fit(tmp_path / "b", module, WORDS, 1e-2, **options, **descent)
        assert found.converged and descending[-1] == pytest.approx(values[-1], rel=1e-5)
        torch.testing.assert_close(found.weight, best.weight, rtol=0, atol=0.05)


@pytest.mark.parametrize("descent", DESCENTS, ids=NAMES)
def test_dense_and_sparse_sweeps_are_the_same(tmp_path, descent):
    fits = [
        fit(tmp_path / str(sparse), topic_data(sparse=sparse), WORDS, per_topic=True, l1=0.3, rounds=3, **descent)[0]
        for sparse in (False, True)
    ]
    torch.testing.assert_close(fits[0].weight, fits[1].weight, rtol=1e-10, atol=1e-10)
    assert fits[0].weight.any()


def test_a_path_by_sweeps(tmp_path):
    options = {"path": 3, "path_ratio": 0.1, "l2": 0.1, "tolerance": 1e-4}
    best, found = (fit(tmp_path / s, data(), FEATURES, solver=s, **options)[0] for s in ("fista", "cd"))
    torch.testing.assert_close(found.weight, best.weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize("descent", [DESCENTS[1], DESCENTS[3]], ids=["random", "blocked"])
def test_a_sweep_that_is_cut_short_is_run_again(tmp_path, descent):
    options = {"l1": 0.5, "l2": 0.0, "rounds": 3, **descent}
    whole = fit(tmp_path / "whole", data(), FEATURES, **options)[0]
    cut = DominationRank(FEATURES, transform=None, tolerance=1e-4, **options)
    calls, reduce = [], cut._reduce

    def interrupted(tensor):
        calls.append(1)
        if cut.trainer.current_epoch == 1 and tensor.shape == (1, cut.block) and len(calls) % 3 == 0:
            raise RuntimeError("cut")
        return reduce(tensor)

    cut._reduce = interrupted
    with pytest.raises(RuntimeError, match="cut"):
        trainer(tmp_path / "cut", 3).fit(cut, datamodule=data())
    resumed = DominationRank(FEATURES, transform=None, tolerance=1e-4, **options)
    trainer(tmp_path / "cut", 3).fit(
        resumed, datamodule=data(), ckpt_path=tmp_path / "cut" / "last.ckpt", weights_only=True
    )
    assert torch.equal(resumed.weight, whole.weight) and not torch.equal(cut.weight, whole.weight)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"solver": "cd", "group": "pooled"}, "group=pooled"),
        ({"solver": "cd", "order": "up"}, "unknown order='up'"),
        ({"solver": "blocked", "block": 0}, "block=0"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        DominationRank(FEATURES, **given)
