"""A fit that is killed anywhere and resumed ends where an uninterrupted one does."""

import signal

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.rankers.small import FEATURES, data, trainer
from torchrank import GBDTRanker, LambdaRank, ListNet, NeuralRanker


@pytest.fixture(autouse=True)
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def assert_equal_states(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-12, atol=1e-12, msg=name)


def test_an_interrupt_at_every_sum_of_a_round_loses_nothing(tmp_path):
    calls = 0
    whole = ListNet(FEATURES, rounds=6)
    total = whole.total

    def counted(fn, into=None):
        nonlocal calls
        calls += 1
        return total(fn, into)

    whole.total = counted
    trainer(tmp_path / "whole", 6).fit(whole, datamodule=data())
    assert calls >= 7

    for stop in range(1, calls + 1):
        folder = tmp_path / str(stop)
        cut = ListNet(FEATURES, rounds=6)
        cut_total, seen = cut.total, 0

        def interrupted(fn, into=None, cut_total=cut_total, stop=stop):
            nonlocal seen
            seen += 1
            if seen == stop:
                raise KeyboardInterrupt
            return cut_total(fn, into)

        cut.total = interrupted
        with pytest.raises(SystemExit):
            trainer(folder, 6).fit(cut, datamodule=data())
        last = folder / "last.ckpt"
        resumed = ListNet(FEATURES, rounds=6)
        trainer(folder, 6).fit(resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True)
        assert_equal_states(whole.state_dict(), resumed.state_dict())


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if trainer.global_step == self.step:
            raise RuntimeError("killed")


@pytest.mark.parametrize(
    "make",
    [
        lambda: LambdaRank(FEATURES, lr=0.1),
        lambda: NeuralRanker(FEATURES, "mlp", "ranknet", {"name": "pca", "variance": 0.8}, {"hidden": [4]}),
    ],
)
@pytest.mark.parametrize("step", [5, 7, 10])
def test_a_killed_epoch_is_repeated(tmp_path, make, step):
    torch.manual_seed(0)
    whole = make()
    start = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    torch.manual_seed(1)
    trainer(tmp_path / "whole", 5).fit(whole, datamodule=data())

    cut = make()
    cut.load_state_dict(start)
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match="killed"):
        trainer(tmp_path / "cut", 5, callbacks=[StopAt(step)]).fit(cut, datamodule=data())
    resumed = make()
    last = tmp_path / "cut/last.ckpt"
    trainer(tmp_path / "cut", 5).fit(resumed, datamodule=data(), ckpt_path=last, weights_only=True)
    assert_equal_states(whole.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_a_checkpoint_in_the_middle_of_an_epoch_is_resumed(tmp_path, step):
    def every_step(folder):
        return ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False)

    whole = LambdaRank(FEATURES, lr=0.1)
    trainer(tmp_path, 3, callbacks=[every_step(tmp_path)]).fit(whole, datamodule=data())
    resumed = LambdaRank(FEATURES, lr=0.1)
    again = trainer(tmp_path / "again", 3)
    again.fit(resumed, datamodule=data(), ckpt_path=tmp_path / f"{step}.ckpt", weights_only=True)
    assert_equal_states(whole.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("rounds", [3, 5, 8])
def test_a_resumed_fit_stops_at_its_rounds(tmp_path, rounds):
    trainer(tmp_path, 20).fit(ListNet(FEATURES, rounds=5, tolerance=0.0), datamodule=data())
    resumed, ran = ListNet(FEATURES, rounds=rounds, tolerance=0.0), []
    one_round = resumed.round
    resumed.round = lambda: ran.append(1) or one_round()
    trainer(tmp_path, 20).fit(resumed, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert len(ran) == max(0, rounds - 5)


def test_resuming_a_converged_fit_runs_no_round(tmp_path):
    ranker = ListNet(FEATURES, rounds=200, l2=0.1)
    trainer(tmp_path, 200).fit(ranker, datamodule=data())
    assert ranker.converged
    again = ListNet(FEATURES, rounds=200, l2=0.1)
    again.round = None  # a round would fail
    trainer(tmp_path, 200).fit(again, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert_equal_states(ranker.state_dict(), again.state_dict())


def test_trees_continue_from_their_text(tmp_path):
    def make():
        return GBDTRanker(FEATURES, rounds=12, min_leaf=3, leaves=4, threads=1)

    whole = make()
    trainer(tmp_path / "whole", 12).fit(whole, datamodule=data())
    trainer(tmp_path / "cut", 5).fit(make(), datamodule=data())
    resumed = make()
    last = tmp_path / "cut/last.ckpt"
    trainer(tmp_path / "cut", 12).fit(resumed, datamodule=data(), ckpt_path=last, weights_only=True)
    assert resumed.booster.current_iteration() == whole.booster.current_iteration() == 12
    test = data().sets["test"]
    torch.testing.assert_close(resumed(test.x, test.offsets), whole(test.x, test.offsets), rtol=1e-6, atol=1e-6)


def test_resumed_trees_with_sampling_say_that_they_differ(tmp_path):
    options = {"feature_fraction": 0.5}
    trainer(tmp_path, 2).fit(GBDTRanker(FEATURES, rounds=4, min_leaf=3, options=options), datamodule=data())
    with pytest.warns(UserWarning, match="differs from an uninterrupted"):
        trainer(tmp_path, 4).fit(
            GBDTRanker(FEATURES, rounds=4, min_leaf=3, options=options),
            datamodule=data(),
            ckpt_path=tmp_path / "last.ckpt",
            weights_only=True,
        )
