"""Checks of fits by rounds: cut or interrupted anywhere and taken up again, they end at the same state, bit by bit."""

import signal

import pytest
import torch

import torchrank
from tests.rankers.small import data, trainer


def equal_states(one, other, exact=False):
    tolerance = 0.0 if exact else 1e-12
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


def check_every_cut(folder, make, rounds):
    whole = make()
    trainer(folder / "whole", rounds).fit(whole, datamodule=data())
    test = data().sets["test"]
    for cut in range(1, whole.trainer.current_epoch):
        trainer(folder / str(cut), cut).fit(make(), datamodule=data())
        resumed, last = make(), folder / str(cut) / "last.ckpt"
        trainer(folder / str(cut), rounds).fit(resumed, datamodule=data(), ckpt_path=last, weights_only=True)
        equal_states(whole, resumed, exact=True)
        again = torchrank.load(last)
        assert torch.equal(again(test.x, test.offsets), resumed(test.x, test.offsets))


def check_every_interrupt(folder, make, rounds, step=1):
    """At each sum over processes, by the keyboard, or at some. Lightning ignores SIGINT for ever after one."""
    whole, before = make(), signal.getsignal(signal.SIGINT)
    calls = interrupted(whole)
    trainer(folder / "whole", rounds).fit(whole, datamodule=data())
    assert len(calls) > rounds
    for stop in range(1, len(calls) + 1, step):
        cut, resumed = make(), make()
        interrupted(cut, stop)
        with pytest.raises(SystemExit):
            trainer(folder / str(stop), rounds).fit(cut, datamodule=data())
        signal.signal(signal.SIGINT, before)
        last = folder / str(stop) / "last.ckpt"
        ckpt_path = last if last.exists() else None
        trainer(folder / str(stop), rounds).fit(resumed, datamodule=data(), ckpt_path=ckpt_path, weights_only=True)
        equal_states(whole, resumed, exact=True)


def interrupted(ranker, stop=None):
    """Count the sums over processes that a fit asks for, and interrupt it at one of them."""
    reduce, calls = ranker._reduce, []

    def counted(tensor):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return reduce(tensor)

    ranker._reduce = counted
    return calls
