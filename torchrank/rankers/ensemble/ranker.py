"""An ensemble of fitted rankers: the weighted mean of their standardised scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Self

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.rows import ALONE, Share
from torchrank.data.sets import RankingSet
from torchrank.data.state import Derived, store
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, NotFittedError, check_choice, check_integer, check_number
from torchrank.functional.conventions import canonical
from torchrank.functional.losses import LOSSES
from torchrank.functional.ragged import wide
from torchrank.rankers.core.evaluation import top_grade
from torchrank.rankers.core.ranker import Prepared, Ranker
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.ensemble.members import batch_for, description, features_of, make_members
from torchrank.rankers.ensemble.standard import standard_scores
from torchrank.rankers.ensemble.weights import ValidationScores, chosen_weights
from torchrank.record import smaller_is_better

WAYS = ("greedy", "fitted")


class Ensemble(Ranker):
    """Ranks by the weighted mean of the scores of fitted rankers, which are standardised first: in each list, the
    scores of a member have mean 0 and standard deviation 1. A member whose scores of a list are all equal adds 0 to it.

    Members keep their transforms, and may look at query vectors or not. They are copied and never trained again; a fit
    only chooses their weights. An ensemble may be a member of another one: its scores are means of standardised scores
    already, so that the whole equals a flat ensemble with the products of the weights.

    Args:
        members: fitted rankers, checkpoints or run folders; a list among them is an ensemble of equal weights.
        weights: None: all are equal; a number >= 0 for each member; or chosen on validation lists by a fit: greedy
            (selection with replacement, Caruana et al. 2004) or fitted (a linear ranker with weights >= 0). The best
            member alone and equal weights are always tried too; `findings` tell the choice.
        choose_by: the measure by which weights are chosen.
        steps: of the greedy selection, each of which adds a member.
        loss: that fitted weights minimise, a key of `torchrank.functional.LOSSES`.
        num_features: number of columns of the rows; by default that of the members.

    Example:
        >>> from torchrank import ListNet, SingleFeature
        >>> x, offsets = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 3.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> members = [ListNet(2).fit(lists), SingleFeature(2).fit(lists)]
        >>> Ensemble(members).rank(x, offsets)
        tensor([1, 2, 0])
        >>> Ensemble(members, weights="greedy").fit(lists, lists).weights
        tensor([1., 0.], dtype=torch.float64)
    """

    weights: Tensor  # (M,), their sum is 1; empty before they are chosen

    def __init__(
        self,
        members: Sequence[Any] = (),
        weights: str | Sequence[float] | None = None,
        choose_by: str = "ndcg@10",
        steps: int = 50,
        loss: str = "listnet",
        num_features: int | None = None,
    ):
        made, first = make_members(members), checked_weights(weights, len(members))
        members = [description(each) for each in made]  # hyper-parameters are plain
        weights = weights if isinstance(weights, str | None) else [float(each) for each in weights]
        num_features = features_of(made, num_features)
        super().__init__(num_features, None, rounds=1)
        check_integer(">= 1", steps=steps)
        check_choice(LOSSES, loss=loss)
        if smaller_is_better(choose_by) or choose_by.startswith("knn_"):
            raise ValueError(f"choose_by must be a measure of rankings to maximise, got {choose_by}")
        self.way = weights if isinstance(weights, str) else None
        self.choose_by, self.steps, self.fitted_loss = canonical(choose_by), steps, loss
        self.chosen_by = () if self.way is None else (self.choose_by,)
        self.members: Any = nn.ModuleList(made).requires_grad_(False).eval()
        self.own = {"members": made}
        self.register_buffer("weights", torch.tensor(first, dtype=torch.float64))
        self.derived = Derived()
        self._take_kinds()

    def _take_kinds(self) -> None:
        """Data that one of the members takes; the others get it in another form."""
        self.takes = frozenset().union(*(member.takes for member in self.members))
        known = {member.by_query for member in self.members}
        self.by_query = True if True in known else False if known == {False} else None
        if all("corpus" in member.takes for member in self.members):
            self.corpus_entries = max((member.corpus_entries for member in self.members), default=0)
        topics = {member.num_topics for member in self.members} - {None}
        if len(topics) > 1:
            raise ValueError(f"members have models of {' and '.join(map(str, sorted(topics)))} topics: rank the same")
        names = next((member.feature_names for member in self.members if member.feature_names), None)
        for member in self.members:
            member.check_names(names)
        self.feature_names = names

    @property
    def num_topics(self) -> int | None:
        return next((member.num_topics for member in self.members if member.num_topics is not None), None)

    def train(self, mode: bool = True) -> Self:
        """Members are fitted: they stay in evaluation mode."""
        super().train(mode)
        self.members.eval()
        return self

    # ---- scores -------------------------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        total: Tensor | None = None
        for weight, member in self.used():
            part = weight * member_scores(member, batch)
            total = part if total is None else total + part
        assert total is not None
        return total

    def used(self) -> Iterator[tuple[float, Ranker]]:
        """The members that have a weight above 0, with it."""
        weights: list[float] = self.derived("weights", [self.weights], self.weights.tolist)
        if not self.members:
            raise NotFittedError("this Ensemble has no members: give members=[...], fitted rankers or checkpoints")
        if not weights:
            raise NotFittedError(f"this Ensemble is not fitted: fit chooses its {self.way} weights on validation lists")
        return ((weight, member) for weight, member in zip(weights, self.members, strict=True) if weight > 0)

    def entry_bytes(self, width: int) -> int:
        each = [member.entry_bytes(max(width, member.transform.num_outputs)) for member in self.members]
        return max(each) + 8 * len(each) + super().entry_bytes(width) if each and all(each) else 0

    # ---- the fit: nothing but the weights -----------------------------------------------------------------------

    def check_validation(self, there: bool) -> None:
        if not self.members:
            raise ValueError("an Ensemble needs members=[...]: fitted rankers, checkpoints or run folders")
        if self.way is not None and not there:
            raise ValueError(f"weights={self.way} are chosen on validation lists: give val=..., or weights=null")

    def learn_transform(self, train: RankingSet, share: Share = ALONE) -> None:
        self._check_vectors(train.has_queries)
        for member in self.members:
            member.check_names(train.feature_names)
        super().learn_transform(train, share)

    @torch.no_grad()
    def settle(self, train: RankingSet, val: RankingSet | None, prepared: Prepared) -> None:
        if self.way is None or val is None:
            return
        self.check_set(val)
        if not val.pairs.any():
            raise DataError("no validation list has entries with different labels, so none can tell weights apart")
        self.members.to(self.device)
        lists = prepared(val, self.transform)
        scores = ValidationScores(lists, self.every_score, self.choose_by, top_grade(train))
        best, *others = chosen_weights(scores, self.way, steps=self.steps, loss=self.fitted_loss)
        store(self, weights=best.weights)
        told = f"{best} (tried: {', '.join(map(str, others))})"
        self.findings = {"weights": told, "members": self._told_members(best.weights.tolist())}

    def every_score(self, batch: Batch) -> Tensor:
        """The standardised scores (M, N) of all members."""
        return torch.stack([member_scores(member, batch) for member in self.members])

    def _told_members(self, weights: list[float]) -> dict[str, float]:
        pairs = enumerate(zip(weights, self.members, strict=True))
        return {f"{number} {type(member).__name__}": round(weight, 4) for number, (weight, member) in pairs}

    def round(self, lists: TrainingLists, number: int) -> Round:
        return Round(done=True, findings=self.findings)


def member_scores(member: Ranker, batch: Batch) -> Tensor:
    """Scores (N,) of a member for a batch of raw rows: standardised, unless they are means of such scores."""
    scores = member.score(batch_for(member, batch))
    return wide(scores) if isinstance(member, Ensemble) else standard_scores(scores, batch.offsets)


def checked_weights(weights: Any, count: int) -> list[float]:
    """The weights of all members, whose sum is 1; none if they are chosen later."""
    if isinstance(weights, str):
        check_choice(WAYS, weights=weights)
        return []
    given = [1.0] * count if weights is None else [each.item() if hasattr(each, "item") else each for each in weights]
    for number, each in enumerate(given):
        check_number(">= 0", **{f"weights[{number}]": each})
    if len(given) != count or (given and not 0 < sum(given) < inf):
        raise ValueError(
            f"weights must be a number >= 0 for each of {count} members, with a finite sum above 0, got {given}"
        )
    return [each / sum(given) for each in given]
