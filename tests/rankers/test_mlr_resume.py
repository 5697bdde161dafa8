"""MLR cut or interrupted anywhere and taken up again ends at the same state, bit by bit."""

import signal

import pytest
import torch

import torchrank
from tests.rankers.metric_fits import KINDS, QUICK, D, data, fit, graded, module_of
from tests.rankers.small import trainer
from torchrank import MLR, MetricBaseline


@pytest.fixture(autouse=True)
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def assert_same(one, other, note=""):
    assert one.state_dict().keys() == other.state_dict().keys()
    for key, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], tensor, rtol=0, atol=0, msg=f"{note} {key}")


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_hold_everything(tmp_path, kind):
    """Cut after some rounds and taken up by a new ranker, the fit ends at the same state, bit for bit."""
    options = QUICK | {"rounds": 4} | KINDS[kind]

    def run(folder, epochs, **given):
        ranker = MLR(D, **options)
        trainer(folder, epochs, monitor="val/map").fit(ranker, datamodule=module_of(kind), weights_only=True, **given)
        return ranker

    whole = run(tmp_path / "whole", 4)
    for cut in (1, 3):
        folder = tmp_path / str(cut)
        if cut < whole.trainer.current_epoch:
            run(folder, cut)
            assert_same(run(folder, 4, ckpt_path=folder / "last.ckpt"), whole, cut)


@pytest.mark.parametrize("kind", ["map", "path"])
def test_an_interrupt_at_any_sum_loses_nothing(tmp_path, kind):
    options = QUICK | {"rounds": 4} | KINDS[kind]

    def counted(ranker, stop=None):
        total, calls = ranker.total, []

        def interrupted(fn, into=None):
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return total(fn, into)

        ranker.total = interrupted
        return calls

    whole = MLR(D, **options)
    calls = counted(whole)
    trainer(tmp_path / "whole", 4, monitor="val/map").fit(whole, datamodule=data())
    assert len(calls) > 4
    for stop in (1, 2, len(calls) - 1):
        folder, cut, resumed = tmp_path / str(stop), MLR(D, **options), MLR(D, **options)
        counted(cut, stop)
        with pytest.raises(SystemExit):
            trainer(folder, 4, monitor="val/map").fit(cut, datamodule=data())
        last = folder / "last.ckpt"
        given = {"ckpt_path": last if last.exists() else None, "weights_only": True}
        trainer(folder, 4, monitor="val/map").fit(resumed, datamodule=data(), **given)
        assert_same(resumed, whole, stop)


def test_resuming_a_converged_fit_runs_no_round(tmp_path):
    fit(tmp_path).trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = MLR(D, **QUICK)
    again.round = None  # a round would fail
    trainer(tmp_path, 200, monitor="val/map").fit(
        again, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True
    )
    assert again.converged


def test_other_options_are_refused_but_for_more_rounds(tmp_path):
    """Bounds of another problem would prove nothing, and a converged fit would be taken for that of these options."""
    last = tmp_path / "last.ckpt"
    fit(tmp_path).trainer.save_checkpoint(last)
    for given in ({"C": 33.0}, {"measure": "auc"}, {"eps": 1e-7}):
        other = MLR(D, **(QUICK | given))
        with pytest.raises(ValueError, match=rf"made with {next(iter(given))}=.* and this MLR has .* go on with"):
            trainer(tmp_path, 9, monitor=None).fit(other, datamodule=data(), ckpt_path=last, weights_only=True)
    more = MLR(D, **(QUICK | {"rounds": 500}))
    trainer(tmp_path, 500, monitor=None).fit(more, datamodule=data(), ckpt_path=last, weights_only=True)
    assert more.converged


def test_other_data_and_another_ranker_are_refused(tmp_path):
    """Cuts of other lists bound another problem, and its test points may be among them."""
    last, module, moved = tmp_path / "last.ckpt", data(form="corpus"), data(form="corpus")
    fit(tmp_path, module, rounds=2).trainer.save_checkpoint(last)
    moved.sets["train"] = graded(seed=9)
    for ranker, lists, message in (
        (MLR(D, **QUICK), moved, "made with other training lists"),
        (MetricBaseline(D, transform=None), module, "holds a MLR, not a MetricBaseline"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path, 9, monitor=None).fit(ranker, datamodule=lists, ckpt_path=last, weights_only=True)


def test_every_fit_of_a_path_is_validated(tmp_path):
    seen = []

    class Watched(MLR):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            seen.append(self.findings["C"])

    trainer(tmp_path, 9, monitor="val/map", check_val_every_n_epoch=1000).fit(
        Watched(D, **(QUICK | {"C": [1.0, 3.0, 10.0]})), datamodule=data()
    )
    assert seen == [1.0, 3.0, 10.0]


def test_tuples_and_lists_are_the_same_options(tmp_path):
    one, other = (MLR(D, **(QUICK | {"transform": kind(["standard", "l2"])})) for kind in (list, tuple))
    trainer(tmp_path, 1, monitor=None).fit(one, datamodule=data())
    one.trainer.save_checkpoint(tmp_path / "one.ckpt")
    trainer(tmp_path, 2, monitor=None).fit(
        other, datamodule=data(), ckpt_path=tmp_path / "one.ckpt", weights_only=True
    )


def test_a_checkpoint_brings_its_certificate_and_the_C_of_a_path(tmp_path):
    ranker = fit(tmp_path, C=[1.0, 10.0])
    ranker.trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.certificate == ranker.certificate and loaded.certificate["gap"] <= loaded.certificate["eps*C"]
    assert loaded.findings == {"C": 10.0}


def test_a_ranker_can_be_fitted_again_to_other_lists(tmp_path):
    ranker = fit(tmp_path)
    trainer(tmp_path, 200, monitor=None, precision="64-true").fit(ranker, datamodule=data(form="corpus"))
    assert torch.equal(ranker.metric, fit(tmp_path / "new", data(form="corpus")).metric)
