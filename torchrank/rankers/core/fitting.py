"""A fit without Lightning: rounds or epochs, validation, early stopping, and the best state kept in memory.

Its limits are those of `conf/`: the same fit through `train.py` stops at the same round and keeps the same state.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torchrank.data.sampler import BatchLoader, BudgetSampler, ranges
from torchrank.data.sets import RankingSet
from torchrank.data.training import TrainingLists, batch_entries, pass_room
from torchrank.data.transforms import Transform
from torchrank.errors import DataError, check_integer
from torchrank.progress import bar
from torchrank.rankers.core.checkpoints import options_of
from torchrank.rankers.core.evaluation import SplitMeasures, top_grade

if TYPE_CHECKING:
    from torchrank.rankers.core.ranker import Ranker

EPOCHS, PATIENCE, MONITOR = 100, 20, "ndcg@10"


def mean_over_lists(losses: Tensor) -> Tensor:
    """The mean loss over the lists of all processes, scaled so that DDP's average of the gradients is its gradient.

    Args:
        losses: (Q,) loss of each list of this process; there may be none.

    Returns:
        A scalar for `backward`. In one process it is `losses.mean()`, or 0 without lists.

    Example:
        >>> mean_over_lists(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """
    lists, world = torch.tensor(float(len(losses)), device=losses.device), 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(lists)
        world = torch.distributed.get_world_size()
    return losses.sum() / lists.clamp(min=1) * world


def fit(
    ranker: Ranker, train: RankingSet, val: RankingSet | None, *, epochs: int | None, batch_documents: int, seed: int
) -> None:
    """See `Ranker.fit`."""
    for name, lists in (("train", train), ("val", val)):
        if not isinstance(lists, RankingSet) and not (name == "val" and lists is None):
            made = "make one of arrays with RankingSet(x, labels, group=...)"
            raise DataError(f"{name} must be a RankingSet, got {type(lists).__name__}: {made}")
    check_integer(">= 1", epochs=epochs, batch_documents=batch_documents)
    check_integer(">= 0", seed=seed)
    cuda = [ranker.device] if ranker.device.type == "cuda" else []
    with torch.random.fork_rng(cuda):
        torch.manual_seed(seed)
        fresh = type(ranker)(**options_of(ranker))
        ranker.load_state_dict(fresh.state_dict())
        try:
            _fit(ranker.train(), train, val, epochs, batch_documents, seed)
        finally:
            ranker.release()


def _fit(
    ranker: Ranker, train: RankingSet, val: RankingSet | None, epochs: int | None, batch_documents: int, seed: int
) -> None:
    ranker.check_set(train)
    ranker.check_validation(val is not None)
    ranker.learn_transform(train)

    def prepared(lists: RankingSet, transform: Transform) -> TrainingLists:
        lists = lists.to(ranker.device, transform)
        return TrainingLists(lists, budget=batch_entries(lists, batch_documents, ranker, pass_room(ranker.device)))

    ranker.settle(train, val, prepared)
    lists = prepared(train, ranker.transform)
    ranker.begin(lists)
    ranker.resume(lists)
    limit = min(each for each in (ranker.rounds, epochs) if each) if ranker.rounds else epochs or EPOCHS
    descent = None if ranker.by_rounds else Descent(ranker, lists.lists, batch_documents, seed)
    watch = None if val is None else Watch(ranker, val, batch_documents, (train, lists.lists))
    for number in bar(range(limit), desc="fit"):
        done = ranker.take_round(number).done if descent is None else descent.epoch(number)
        last = done or number + 1 == limit
        if watch is not None and (last or not ranker.certified):
            watch.validate()
        if descent is not None:
            descent.end_epoch(watch)
        if done or (watch is not None and watch.stopped):
            break
    ranker.close(f"epochs (now {epochs})" if epochs is not None and epochs < (ranker.rounds or 0) else ranker.limit())
    if watch is not None:
        watch.restore()


class Descent:
    """Gradient steps of a ranker, an epoch at a time."""

    def __init__(self, ranker: Ranker, lists: RankingSet, batch_documents: int, seed: int):
        sampler = BudgetSampler(lists.lengths, budget=batch_documents, shuffle=True, seed=seed)
        self.ranker, self.loader = ranker, BatchLoader(lists, sampler)
        made = ranker.configure_optimizers()
        made = made if isinstance(made, dict) else {"optimizer": made}
        self.optimizer: torch.optim.Optimizer = made["optimizer"]
        self.schedule: dict[str, Any] = made.get("lr_scheduler", {})

    def epoch(self, number: int) -> bool:
        """One pass over the lists; a gradient never converges by itself."""
        self.loader.set_epoch(number)
        for batch in self.loader:
            self.optimizer.step(self._closure(batch))  # type: ignore[arg-type]
            if self.schedule.get("interval") == "step":
                self.schedule["scheduler"].step()
        return False

    def _closure(self, batch: Any) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            loss = mean_over_lists(self.ranker.loss(batch))
            self.optimizer.zero_grad()
            loss.backward()
            if self.ranker.optimization.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.ranker.parameters(), self.ranker.optimization.clip)
            return loss

        return closure

    def end_epoch(self, watch: Watch | None) -> None:
        if self.schedule.get("interval") != "epoch":
            return
        if not isinstance(self.schedule["scheduler"], ReduceLROnPlateau):
            self.schedule["scheduler"].step()
        elif watch is None:
            raise DataError(f"ReduceLROnPlateau watches val/{MONITOR}: give val=")
        elif self.schedule["monitor"] != f"val/{MONITOR}":
            raise ValueError(f"a fit without a Trainer measures val/{MONITOR} only: set it as scheduler.monitor")
        else:
            self.schedule["scheduler"].step(watch.value)


class Watch:
    """Validation of a fit: the best state so far, and whether there was none better for too long. `train` are the
    training lists before and after the transform, whose corpus validation may share."""

    def __init__(self, ranker: Ranker, val: RankingSet, batch_documents: int, train: tuple[RankingSet, RankingSet]):
        ranker.check_set(val)
        if not val.pairs.any():
            raise DataError("no validation list has entries with different labels, so none can tell rounds apart")
        self.ranker, self.val = ranker, val.to(ranker.device, ranker.transform, beside=[train])
        names, top = dict.fromkeys((MONITOR, *ranker.chosen_by)), top_grade(train[0])
        self.measures = SplitMeasures(list(names), lists=self.val, max_label=top)
        if ranker.ranks_corpus and self.val.has_judgements and self.measures.takes_ranks:
            self.val = self.val.judged()
        self.budget = batch_entries(self.val, batch_documents, ranker, pass_room(ranker.device))
        self.value, self.best, self.waited = math.nan, -math.inf, 0
        self.state: dict[str, Any] | None = None

    @property
    def stopped(self) -> bool:
        """A certified fit ends by its certificate; every other one as by early stopping."""
        return not self.ranker.certified and self.waited >= PATIENCE

    @torch.no_grad()
    def validate(self) -> None:
        ranker = self.ranker.eval()
        for first, last in ranges(self.val.lengths, self.budget, 0, len(self.val)):
            self.measures.update(ranker.validation_step(self.val[first:last]), self.val[first:last])
        found = [candidate["default"] for candidate in self.measures.conclude()]
        chosen = ranker.choose(found) if len(found) > 1 else 0
        self.value = found[chosen]["measures"][MONITOR]
        self.waited += 1
        if self.value > self.best:
            self.best, self.waited = self.value, 0
            self.state = None if ranker.certified else copy.deepcopy(ranker.state_dict())
        ranker.train()

    def restore(self) -> None:
        """The best state, unless the last one counts."""
        if self.state is not None:
            self.ranker.load_state_dict(self.state)
