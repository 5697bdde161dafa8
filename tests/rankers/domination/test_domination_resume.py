"""DominationRank interrupted in the middle of a round that has many parts, and fitted again to other lists.

That every cut and interrupt of a fit can be resumed is a law of all rankers: tests/laws/test_rankers.py.
"""

from itertools import pairwise

import pytest
import torch

from tests.rankers.domination.fits import SOLVERS, TIGHT, close, fit
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank, RankingDataModule
from torchrank.data.training import TrainingLists

SLOW = {"induction by sweeps": {"l1": 0.5, "l2": 0.0, "solver": "cd", "induction": 2, "tolerance": 1.0}}
ROUNDS = {
    "induction": SOLVERS["induction"] | {"tolerance": 1e-2},
    "path": SOLVERS["path"] | {"tolerance": 5.0},
    "path by induction": SOLVERS["path by induction"] | {"tolerance": 5.0},
    "sweeps": {"l1": 0.5, "l2": 0.0, "solver": "cd", "tolerance": 1e-4},
    "sweeps of blocks": {"l1": 0.5, "l2": 0.0, "solver": "blocked", "block": 2, "tolerance": 1e-4},
}


class Sums:
    """Counts the sums over processes that fits ask for, and interrupts one of them."""

    def __init__(self, monkeypatch):
        self.calls, self.stop, reduce = 0, None, TrainingLists.reduce

        def counted(lists, tensor):
            self.calls += 1
            if self.calls == self.stop:
                raise KeyboardInterrupt
            return reduce(lists, tensor)

        monkeypatch.setattr(TrainingLists, "reduce", counted)

    def at(self, stop):
        self.calls, self.stop = 0, stop


@pytest.mark.parametrize("name", [*ROUNDS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_interrupt_in_the_middle_of_a_round_loses_that_round_only(tmp_path, name, monkeypatch):
    """A path, an induction or a sweep that was half done is done again from the round before, to the same bits."""
    monkeypatch.setattr("torchrank.rankers.domination.ranker.STEPS", 2)  # fewer sums, as many kinds of them
    options = {"rounds": 3, "transform": None} | (ROUNDS | SLOW)[name]
    sums, ends = Sums(monkeypatch), []
    whole = DominationRank(FEATURES, **options)
    take = whole.round

    def counted(lists, number):
        found = take(lists, number)
        ends.append(sums.calls)
        return found

    whole.round = counted
    trainer(tmp_path / "whole", 3).fit(whole, datamodule=data())
    parts = [after - before for before, after in pairwise(ends)]
    assert len(ends) >= 2 and max(parts) >= 5  # a round has many parts
    for stop in sorted({1, ends[0] - 1, ends[0] + 1, ends[0] + parts[0] // 2, ends[-1] - 1, ends[-1]}):
        folder, cut, resumed = (
            tmp_path / str(stop),
            DominationRank(FEATURES, **options),
            DominationRank(FEATURES, **options),
        )
        sums.at(stop)
        with pytest.raises(SystemExit):
            trainer(folder, 3).fit(cut, datamodule=data())
        last = folder / "last.ckpt"
        assert last.exists() == (stop > ends[0])  # the rounds that were done are there
        sums.at(None)
        trainer(folder, 3).fit(resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True)
        for key, tensor in whole.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                assert torch.equal(resumed.state_dict()[key], tensor), (stop, key)
        assert resumed.certificate == whole.certificate


@pytest.mark.parametrize("options", [{"negatives": 0.5}, {"relative": True}, {"path": 3}, {"group": "pooled"}])
def test_a_ranker_can_be_fitted_again_to_other_lists(tmp_path, options):
    """Through a trainer; nothing of the lists before is left."""
    options = {"l1": 0.5, "l2": 0.0} | options
    ranker = DominationRank(FEATURES, **TIGHT | options)
    trainer(tmp_path, 200).fit(ranker, datamodule=data())
    other = RankingDataModule.from_sets(train=lists(5), val=lists(1))
    trainer(tmp_path, 200).fit(ranker, datamodule=other)
    close(ranker, fit(lists(5), **options))
