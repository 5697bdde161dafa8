"""Rounds and validations of the rankers that grow from round to round, and the closed form of GMML.

1. A later validation of L-GMML, RankBoost, AdaRank and trees, against that of ListNet on the same lists.
2. Whole fits of L-GMML by 13 and 50 rounds at most, each validated, until they end by themselves; later rounds.
3. GMML in closed form on lists, and on lists that all hold the same corpus, with query vectors.

`--against REVISION` gives the ratios to an earlier version.
"""

from collections.abc import Iterator
from functools import partial
from inspect import signature

import numpy as np
import torch

from benchmarks.suite import MissingPeerError, Row, Setting, peer
from torchrank import GMML, LGMML, AdaRank, GBDTRanker, ListNet, RankBoost, RankingSet, TrainingLists
from torchrank.data import Judged
from torchrank.data.synthetic.mslr import synthetic_splits
from torchrank.rankers.core.evaluation import SplitMeasures

BUDGET = 20_000  # documents of a batch
GIVEN = {"t": 0.5, "ridge": 0.1, "kappa": 10.0, "transform": "standard"}
HAS_ROUNDS_OF_TREES = "trees_per_round" in signature(GBDTRanker).parameters  # a round of older revisions is one tree
ONE_TREE = {"trees_per_round": 1} if HAS_ROUNDS_OF_TREES else {}


class Fit:
    """A fit by rounds, each validated, without early stopping."""

    def __init__(self, ranker, sets):
        self.ranker, self.done, self.ended = ranker, 0, False
        ranker.learn_transform(sets["train"])
        self.lists = TrainingLists(sets["train"].to("cpu", ranker.transform), budget=BUDGET)
        self.val = TrainingLists(sets["val"].to("cpu", ranker.transform), budget=BUDGET)
        self.measures = SplitMeasures(["ndcg@10"], lists=self.val.lists)
        ranker.begin(self.lists)
        ranker.resume(self.lists)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.ended = self.ranker.take_round(self.done).done
            self.done += 1

    def more_rounds(self, count: int) -> None:
        for _ in range(count):
            if not self.ended:
                self.rounds(1)

    @torch.no_grad()
    def validate(self) -> None:
        for batch in self.val:
            self.measures.update(self.ranker.validation_step(batch), batch)
        self.measures.conclude()

    def run(self, count: int) -> None:
        for _ in range(count):
            if not self.ended:
                self.rounds(1)
                self.validate()


def rows(setting: Setting) -> Iterator[Row]:
    sets = synthetic_splits(setting.size(600, 40), num_features=136, mean_length=120)
    yield from validations(setting, sets)
    yield from fits(setting, sets)
    yield closed_form(setting, sets["train"])
    yield from whole_corpus(setting)


def validations(setting: Setting, sets) -> Iterator[Row]:
    makers = {
        "L-GMML": lambda: LGMML(136, groups="random", rounds=50),
        "RankBoost": lambda: RankBoost(136),
        "AdaRank": lambda: AdaRank(136, exclude_repeat=False),
        "trees": lambda: GBDTRanker(136, threads=1, **ONE_TREE),  # the others add one rule, too
    }
    plain = Fit(ListNet(136, transform="standard"), sets)
    plain.rounds(1)
    for name, make in makers.items():
        if name == "trees":
            try:
                peer("lightgbm", "gbdt")
            except MissingPeerError as error:
                yield Row("later validation: trees", note=str(error))
                continue
        fit, times = Fit(make(), sets), []
        fit.run(3)
        for _ in range(setting.size(7, 1)):
            fit.rounds(1)
            times.append((setting.seconds(fit.validate), setting.seconds(plain.validate)))
        ours, theirs = map(min, zip(*times, strict=True))
        yield Row(f"later validation: {name}", ours, peer="ListNet's", theirs=theirs, bar=1.5)


def fits(setting: Setting, sets) -> Iterator[Row]:
    for count, earlier in ((13, 0.5), (50, 0.65)):
        fit = Fit(LGMML(136, groups="random", rounds=50), sets)
        time = setting.seconds(partial(fit.run, count))
        note = f"converged in round {fit.done}" if fit.ended else ""
        yield Row(f"L-GMML: {count} rounds with validation", time, earlier=earlier, note=note)
    fit = Fit(LGMML(136, groups="random", rounds=50), sets)
    fit.rounds(2)
    objective = fit.ranker._objective = Counted(fit.ranker._objective)
    time = setting.seconds(lambda: fit.more_rounds(11))
    rounds = fit.done - 2
    note = f"{objective.calls / rounds:.2g} evaluations of the loss in a round"
    yield Row("L-GMML: the mean of rounds 3 to 13", time / rounds, earlier=0.45, note=note)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        return self.function(*arguments, **options)


def closed_form(setting: Setting, train) -> Row:
    (ours,) = setting.race(lambda: GMML(136, **GIVEN).fit(train), repeats=3)
    return Row(f"GMML in closed form, {len(train.x):,} documents", ours, earlier=1 / 3)


def whole_corpus(setting: Setting) -> Iterator[Row]:
    random, (queries, documents, width) = np.random.default_rng(0), (144, setting.size(1400, 200), 384)
    corpus, vectors = (
        torch.from_numpy(random.normal(size=(count, width)).astype(np.float32)) for count in (documents, queries)
    )
    rows = np.concatenate([np.sort(random.choice(documents, 8, replace=False)) for _ in range(queries)])
    relevance = Judged.make(rows, random.integers(1, 5, len(rows)), np.full(queries, 8), documents)
    lists = RankingSet(corpus, relevance, queries=vectors)
    (ours,) = setting.race(lambda: GMML(width, **GIVEN).fit(lists), repeats=3)
    name = f"GMML on {queries} queries, each with the {documents:,} documents of a corpus"
    yield Row(name, ours, peer="limit", theirs=1.0, bar=1.0)
    chosen = setting.seconds(lambda: GMML(width).fit(lists))
    yield Row(
        f"{name}, all settings chosen", chosen, peer="limit", theirs=1.0, bar=1.0, note="40 spectra of 384 numbers"
    )
