"""MLR: the oracles against plain loops and against numpy, list by list; average precision against its dense form; the
parts of a round on IsoLet.

The loops are the published pseudo-code, entry by entry, timed on a few lists and scaled to all; they count what the
formulas write as a number of entries. The numpy forms take one list at a time, as fast as we could write them. All
three must find rankings of equal value. IsoLet (95% of the variance, C = 10) is read from the folder of data sets.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.mlr_plain import NUMPY, TABLES, by_loops, make_table
from benchmarks.suite import Row, Setting
from torchrank import MLR
from torchrank.data.sources.points import load_points
from torchrank.functional import most_violated
from torchrank.functional.oracles.merged import merge
from torchrank.functional.oracles.whole_list import average_precision_at, average_precision_problem, dense, halving
from torchrank.solvers.cutting_plane.plane import add_cut, start
from torchrank.solvers.metric_scores import add_metric_psi, metric_scores

MEASURES = [("auc", None), ("precision", 10), ("mrr", None), ("map", None), ("ndcg", 10), ("ndcg", None)]
PARTS = ("lists and scores", "oracle", "sums", "solve")
RELEVANT = 0.1  # share of the entries


def rows(setting: Setting) -> Iterator[Row]:
    yield from against_loops_and_numpy(setting, setting.size(1000, 10), setting.size(500, 50))
    yield halving_against_dense(setting, setting.size(64, 4), setting.size(3000, 300))
    for measure in ("auc", "mrr") if setting.data and not setting.quick else ():
        yield from rounds_on_isolet(setting, measure)


def make_lists(lists, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(lists * length, generator=generator) < RELEVANT).long()
    scores = torch.randn(len(labels), generator=generator, dtype=torch.float64) + labels
    return scores, labels, torch.arange(0, lists * length + 1, length)


def hinges(found, scores):
    """loss - sum of coefficients * scores of each list; `found` may have fewer lists."""
    return np.array([loss - np.dot(c, s) for (c, loss), s in zip(found, scores, strict=False)])


def list_by_list(oracle, lists, *options):
    return [oracle(*one, *options) for one in lists]


def against_loops_and_numpy(setting: Setting, lists: int, length: int) -> Iterator[Row]:
    scores, labels, offsets = make_lists(lists, length)
    each, relevant = scores.view(lists, length).numpy(), (labels.view(lists, length) > 0).numpy()
    TABLES[length] = make_table(length)
    some = [(list(map(float, s)), r.tolist()) for s, r in zip(each, relevant, strict=True)][: setting.size(20, 2)]
    for measure, k in MEASURES:
        ours = partial(most_violated, scores, labels, offsets, measure=measure, k=k, max_length=length)
        numpy = partial(list_by_list, NUMPY[measure], list(zip(each, relevant, strict=True)), k)
        loops = partial(list_by_list, by_loops, some, measure, k)
        quick, lists_by_numpy = setting.race(ours, numpy, repeats=10)
        slow = setting.seconds(loops) * lists / len(some)
        coefficients, loss = ours()
        value = (loss - (coefficients * scores).view(lists, length).sum(1)).numpy()
        others = [hinges(form(), each) for form in (numpy, loops)]
        apart = f"values differ by {max(np.abs(value[: len(other)] - other).max() for other in others):.0e}"
        name = f"{measure if k is None else f'{measure}@{k}'}, {lists} lists of {length}"
        yield Row(name, quick, peer="loops", theirs=slow, bar=1 / 20, note=apart)
        yield Row(name, quick, peer="numpy, list by list", theirs=lists_by_numpy, bar=1)


def halving_against_dense(setting: Setting, lists: int, length: int) -> Row:
    scores, labels, offsets = make_lists(lists, length)
    merged = merge(scores, labels > 0, offsets, max_length=length)
    forms = [
        lambda solve=solve: average_precision_at(merged, solve(average_precision_problem(merged)))
        for solve in (halving, dense)
    ]
    ours, theirs = setting.race(*forms, repeats=6)
    values = [lost - (merged.scale * c * merged.scores()).sum(1) for c, lost in (form() for form in forms)]
    note = f"values differ by {float((values[0] - values[1]).abs().max()):.0e}"
    return Row(f"map, {lists} lists of {length}", ours, peer="its dense form", theirs=theirs, bar=1 / 5, note=note)


def rounds_on_isolet(setting: Setting, measure: str, rounds: int = 6, lists_at_once: int = 168) -> Iterator[Row]:
    """The parts of one round, mean of all but the first two."""
    train = load_points("isolet", root=setting.data, val_fraction=0)["train"]
    ranker = MLR(train.num_features, transform={"name": "pca", "variance": 0.95})
    ranker.transform.fit(train.x, None)
    train, width = train.to("cpu", ranker.transform), ranker.transform.num_outputs
    plane, seconds = start((width, width)), np.zeros((rounds, 4))
    for number in range(rounds):
        psi, loss = torch.zeros(width, width, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for first in range(0, len(train), lists_at_once):
            clock = [setting.clock()]
            batch = train[first : first + lists_at_once]
            scores = metric_scores(batch, plane.probe)
            clock.append(setting.clock())
            coefficients, losses = most_violated(
                scores, batch.labels, batch.offsets, measure=measure, max_length=batch.max_length
            )
            clock.append(setting.clock())
            add_metric_psi(batch, coefficients, psi)
            loss += losses.sum()
            clock.append(setting.clock())
            seconds[number, :3] += np.diff(clock)
        before = setting.clock()
        plane = add_cut(plane, psi / len(train), loss / len(train), C=10.0, eps=1e-2)
        seconds[number, 3] = setting.clock() - before
    parts = seconds[2:].mean(0).tolist()
    for name, part in zip(PARTS, parts, strict=True):
        yield Row(f"a round of {measure} on IsoLet, {name}", part, peer="the round", theirs=sum(parts))
