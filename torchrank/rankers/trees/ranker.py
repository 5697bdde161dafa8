"""Gradient boosted trees as a ranker: some trees per round; validated, saved and tested like every other ranker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import (
    CheckpointError,
    NotFittedError,
    NumericalWarning,
    check_choice,
    check_integer,
    check_mapping,
    check_number,
)
from torchrank.rankers.core.kept import KEPT_BYTES, BatchMemory
from torchrank.rankers.core.ranker import Ranker, TransformOption, warn
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.ensemble.members import description
from torchrank.rankers.trees.engine import Common, Engine, host
from torchrank.rankers.trees.lightgbm import LightGBM
from torchrank.rankers.trees.start import make_start, start_scores
from torchrank.rankers.trees.xgboost import XGBoost

LOOKS = 50  # validations of a whole fit
ENGINES: dict[str, type[Engine]] = {"lightgbm": LightGBM, "xgboost": XGBoost}


class GBDTRanker(Ranker):
    """Gradient boosted trees of LightGBM (Ke et al. 2017) or XGBoost (Chen and Guestrin 2016).

    Early stopping uses the measures of torchrank, as for every ranker. A resumed fit continues from the text of the
    booster. It equals an uninterrupted one, except where the engine draws random numbers (with LightGBM: rank_xendcg,
    and any `options` or positions): a warning says so.

    Args:
        num_features: number of columns of the rows.
        objective: lambdarank or regression on the labels. LightGBM has rank_xendcg, XGBoost has rank:pairwise and
            rank:map, too.
        rounds: maximum number of trees.
        lr: learning rate.
        leaves: maximum number of leaves of a tree; None: the engine's default.
        min_leaf: least size of a leaf: documents for LightGBM, the sum of second derivatives (min_child_weight) for
            XGBoost; None: the engine's default.
        threads: number of threads of the engine; 0: all cores.
        seed: seed of the engine.
        transform: feature transform, see `make_transform`.
        options: further parameters by the engine's own names; they take precedence over those above.
        engine: lightgbm or xgboost.
        trees_per_round: trees between two validations; None: a fiftieth of `rounds`, so that early stopping, which
            waits for 20 validations, waits for 400 of 1000 trees.
        start: a fitted ranker, a checkpoint or a run folder, to whose scores the trees add theirs; None: 0. It becomes
            part of this ranker and of its checkpoints. The transform must be None.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> GBDTRanker(1, rounds=5, min_leaf=1, threads=1).fit(lists).rank(x, offsets)
        tensor([1, 2, 0])
    """

    takes = frozenset({"sparse"})
    weighted = True

    def __init__(
        self,
        num_features: int,
        objective: str = "lambdarank",
        rounds: int = 1000,
        lr: float = 0.05,
        leaves: int | None = None,
        min_leaf: int | None = None,
        threads: int = 0,
        seed: int = 0,
        transform: TransformOption = None,
        options: dict[str, Any] | None = None,
        engine: str = "lightgbm",
        trees_per_round: int | None = None,
        start: Any = None,
    ):
        first = make_start(start, num_features, transform)
        start = None if first is None else description(first)  # hyper-parameters are plain
        check_choice(ENGINES, engine=engine)
        check_mapping(options=options)
        check_number("> 0", lr=lr)
        check_integer(">= 2", leaves=leaves)
        check_integer(">= 1", rounds=rounds, trees_per_round=trees_per_round)
        super().__init__(num_features, transform, rounds)
        self.trees = rounds
        self.use_steps(trees_per_round or max(1, rounds // LOOKS))
        common = Common(objective, lr, leaves, min_leaf, threads, seed)
        self.engine = ENGINES[engine](common, options or {})
        self.takes = self.engine.takes
        self.booster: Any = None
        self.first = first
        self.own = {} if first is None else {"start": first}

    def train(self, mode: bool = True) -> Self:
        """The ranker that trees start from is fitted: it stays in evaluation mode."""
        super().train(mode)
        if self.first is not None:
            self.first.eval()
        return self

    def use_steps(self, trees: int) -> None:
        """Grow so many trees in a round."""
        self.trees_per_round, self.rounds = trees, -(-self.trees // trees)

    # ---- a fit --------------------------------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        self.booster = None

    def open(self, lists: TrainingLists) -> None:
        if lists.world > 1:
            threads = f"trainer=cpu ({self.engine.title} uses all cores)"
            raise ValueError(f"GBDTRanker trains in one process, but there are {lists.world}: use {threads}")
        self.kept.data = None  # of the engine, made in the first round
        self.kept.memory = BatchMemory(KEPT_BYTES)

    def round(self, lists: TrainingLists, number: int) -> Round:
        there = 0 if self.booster is None else self.engine.rounds(self.booster)
        done = False
        for _ in range(min(self.trees_per_round, self.trees - there)):
            done = done or self._grow(lists)
        return Round(done)

    def _grow(self, lists: TrainingLists) -> bool:
        """One more tree; whether there can be no other."""
        if self.kept.data is None:
            data = self._training_data(lists)
            grown = self.engine.begin(self.booster, data)
            self.kept.data = data
        else:
            grown = self.engine.grow(self.booster, self.kept.data)
        self.booster = grown.booster
        return grown.done

    def _training_data(self, lists: TrainingLists) -> Any:
        batch = lists.lists[:]
        self.engine.check(batch)
        if self.booster is not None and not self.engine.resumes_exactly(batch, self.first is not None):
            warn(
                f"{self.engine.title}'s random numbers start over, so the resumed fit differs from an uninterrupted "
                "one",
                NumericalWarning,
            )
        return self.engine.data(batch, self._start_scores(lists))

    def _start_scores(self, batches: Iterable[Batch]) -> np.ndarray | None:
        """The scores (N,) that the trees add to; None: all are 0."""
        if self.first is None:
            return None
        return host(torch.cat([start_scores(self.first, batch).to(self.engine.dtype) for batch in batches]))

    def release(self) -> None:
        super().release()
        if self.booster is not None:  # without the training data
            self.booster = self.engine.read(self.engine.text(self.booster), self.transform.num_outputs)

    # ---- scores -------------------------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        return self._scores(batch).to(batch.device)

    def _scores(self, batch: Batch) -> Tensor:
        """Scores (N,) on the host, where the engine is."""
        start = self._start_scores([batch])
        if len(batch.labels) and self.booster is not None:
            return torch.from_numpy(self.engine.predict(self.booster, batch.x, start))
        return torch.zeros(len(batch.labels), dtype=self.engine.dtype) if start is None else torch.from_numpy(start)

    def validation_scores(self, batch: Batch) -> Tensor:
        """Scores (N,); during a fit those of the last validation are kept, and only the new trees are added."""
        memory: BatchMemory | None = getattr(self.kept, "memory", None)
        if memory is None or self.booster is None:
            return self.score(batch)
        held: Any = memory.find(batch) or (None, 0, None)
        booster, first, before = held
        counted = self.engine.rounds(self.booster)
        known = booster is self.booster and first <= counted
        scores = self._grown(batch, first, before) if known else self._scores(batch)
        memory.keep(batch, (self.booster, counted, scores))
        return scores.to(batch.device, copy=True)  # callers may write to theirs

    def _grown(self, batch: Batch, first: int, before: Tensor) -> Tensor:
        if first == self.engine.rounds(self.booster):
            return before
        found = self.engine.added(self.booster, batch.x, first, before.numpy())
        return self._scores(batch) if found is None else torch.from_numpy(found)

    # ---- what was learned ---------------------------------------------------------------------------------------

    def check_fitted(self) -> None:
        """Refuse a ranker without trees."""
        if self.booster is None:
            raise NotFittedError("this GBDTRanker is not fitted: call fit first")

    def importances(self) -> Tensor:
        """The gain (D,) of all splits of each transformed feature, by which the engine has chosen them.

        Returns:
            Gains, not divided by their sum.
        """
        self.check_fitted()
        return torch.from_numpy(self.engine.gains(self.booster))

    def get_extra_state(self) -> dict[str, Any]:
        text = None if self.booster is None else self.engine.text(self.booster)
        own = {"booster": text, "checksum": None if text is None else crc32(text.encode())}
        return super().get_extra_state() | own | {"trees_per_round": self.trees_per_round}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        text, steps = state["booster"], state.get("trees_per_round", 1)  # 1 in checkpoints of earlier versions
        if type(steps) is not int or steps < 1:
            raise CheckpointError(f"trees_per_round in this state must be an integer >= 1, got {steps!r:.40}")
        if not isinstance(text, str | None):
            raise CheckpointError(f"the trees in this state must be a text, got {type(text).__name__}")
        if text is not None and state.get("checksum") != crc32(text.encode()):
            raise CheckpointError("the trees in this state are damaged: their checksum differs. Fit the ranker again.")
        self.booster = None if text is None else self.engine.read(text, self.transform.num_outputs)
        self.use_steps(steps)
