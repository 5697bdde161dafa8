"""DominationRank: certificates, checkpoints, interrupts."""

import signal

import pytest
import torch

import torchrank
from tests.rankers.domination_fits import (
    SOLVERS,
    TIGHT,
    close,
    fit,
    reference,
)
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank, RankingDataModule


@pytest.fixture(autouse=True)
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


# ---- certificates, checkpoints, interrupts --------------------------------------------------------------------------


def test_a_fit_that_ends_early_says_so(tmp_path):
    with pytest.warns(UserWarning, match="stopped before its certificate .kkt"):
        ranker = fit(tmp_path, l1=0.1, l2=0.0, tolerance=1e-12, rounds=1)
    assert not ranker.converged and ranker.certificate["kkt"] > 1e-12
    expected = reference(lists(0), l1=0.1).violation(ranker.weight[0].numpy())
    assert ranker.certificate == {"kkt": pytest.approx(expected, abs=1e-9), "tolerance": 1e-12}
    assert ranker.density() == 1.0


def test_a_certified_path_warns_of_nothing(tmp_path, recwarn):
    fit(tmp_path, **SOLVERS["path"])
    assert not [found for found in recwarn if "certificate" in str(found.message) or "path" in str(found.message)]


def test_a_step_of_a_path_that_is_not_proved_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torchrank.rankers.domination.ranker.PATH_ROUNDS", 1)
    with pytest.warns(UserWarning, match="this step of the path ends at a KKT violation of"):
        fit(tmp_path, **SOLVERS["path"] | {"path_ratio": 1e-4, "tolerance": 1e-12})


@pytest.mark.parametrize("name", SOLVERS)
def test_checkpoints_hold_everything(tmp_path, name, monkeypatch):
    """Cut after every round and taken up by a new ranker, the fit ends at the same state."""
    monkeypatch.setattr("torchrank.rankers.domination.ranker.STEPS", 3)
    options = SOLVERS[name] | {"tolerance": 1e-3, "rounds": 4, "transform": None}

    def make():
        return DominationRank(FEATURES, **options)

    whole = make()
    trainer(tmp_path / "whole", 4).fit(whole, datamodule=data())
    for cut in range(1, whole.trainer.current_epoch):
        folder = tmp_path / str(cut)
        trainer(folder, cut).fit(make(), datamodule=data())
        resumed = make()
        trainer(folder, 4).fit(resumed, datamodule=data(), ckpt_path=folder / "last.ckpt", weights_only=True)
        for key, tensor in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[key], tensor, rtol=1e-10, atol=1e-10, msg=f"{cut} {key}")
        assert torch.equal(torchrank.load(folder / "last.ckpt").weight, resumed.weight)


def counted(ranker, stop=None):
    """Count the sums that a fit asks for, and interrupt it at one of them."""
    total, calls = ranker.total, []

    def interrupted(fn, into=None):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return total(fn, into)

    ranker.total = interrupted
    return calls


@pytest.mark.parametrize("name", SOLVERS)
def test_an_interrupt_at_any_sum_loses_nothing(tmp_path, name, monkeypatch):
    monkeypatch.setattr("torchrank.rankers.domination.ranker.STEPS", 2)  # fewer sums, as many kinds of them
    options = SOLVERS[name] | {"tolerance": 1e-2 if "path" not in name else 5.0, "rounds": 3, "transform": None}

    def make():
        return DominationRank(FEATURES, **options)

    whole = make()
    calls = counted(whole)
    trainer(tmp_path / "whole", 3).fit(whole, datamodule=data())
    total = len(calls)
    for stop in sorted({1, 2, 3, *range(4, total, 1 + total // 4), total}):
        folder, cut, resumed = tmp_path / str(stop), make(), make()
        counted(cut, stop)
        with pytest.raises(SystemExit):
            trainer(folder, 3).fit(cut, datamodule=data())
        last = folder / "last.ckpt"
        trainer(folder, 3).fit(resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True)
        for key, tensor in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[key], tensor, rtol=1e-10, atol=1e-10, msg=f"{stop} {key}")


def test_resuming_a_converged_fit_runs_no_round(tmp_path):
    fit(tmp_path, l1=1.0)
    again = DominationRank(FEATURES, l1=1.0, **TIGHT)
    again.round = None  # a round would fail
    trainer(tmp_path, 200).fit(again, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.converged


def test_a_ranker_can_be_fitted_again_to_other_lists(tmp_path):
    ranker = DominationRank(FEATURES, l1=1.0, l2=0.0, negatives=0.5, **TIGHT)
    trainer(tmp_path, 200).fit(ranker, datamodule=data())
    other = RankingDataModule.from_sets(train=lists(5), val=lists(1))
    trainer(tmp_path, 200).fit(ranker, datamodule=other)
    close(ranker, fit(tmp_path / "new", other, l1=1.0, l2=0.0, negatives=0.5))
