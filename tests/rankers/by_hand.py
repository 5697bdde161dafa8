"""Fits by rounds, one round at a time, for tests that look inside a fit or stop it; and states that must be equal."""

import torch

from torchrank import TrainingLists


def begin(ranker, train, batch_documents=40):
    """A fresh fit up to its first round; returns the lists of the fit."""
    ranker.learn_transform(train)
    lists = TrainingLists(train.to("cpu", ranker.transform), budget=batch_documents)
    ranker.begin(lists)
    ranker.resume(lists)
    return lists


def take_rounds(ranker, first, last):
    """The rounds first..last-1, or fewer where the fit converges; returns how many there were."""
    for number in range(first, last):
        if ranker.converged:
            return number - first
        ranker.take_round(number)
    return last - first


def resumed(ranker, make, lists):
    """Another ranker that resumes the fit of this one from its state."""
    other = make()
    other.load_state_dict(ranker.state_dict())
    other.resume(lists)
    return other


def same_state(one, other, tolerance=0.0):
    """All parameters and buffers are equal, by default to the bit."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(theirs[name], value, rtol=tolerance, atol=tolerance, msg=name)
