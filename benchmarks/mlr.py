"""MLR: the oracles against plain loops and against numpy, list by list; average precision against its dense form; the
parts of a round on IsoLet.

    python benchmarks/mlr.py [--lists 1000] [--length 500] [--relevant 0.1] [--loop-lists 20] [--repeats 20]
                             [--long-lists 64] [--long-length 3000] [--threads 1] [--isolet FOLDER] [--quick]

The loops are the published pseudo-code, entry by entry, timed on a few lists and scaled to all. They count what the
formulas write as a number of entries; for AUC and precision also, without a wanted ratio, in one pass over the sorted
entries (Joachims, ICML 2005).
The numpy forms take one list at a time, as fast as we could write them. All three must find rankings of equal value.
Each time is CPU time, the best of `repeats` rounds in which the forms take turns: other processes matter little. With
two threads the time of both counts. The rounds on IsoLet (FOLDER has Isolet1.mat and so on, or they are in isolet/
or uci/isolet/ below it; 95% of the variance; AUC and MRR, C = 10) are timed by the wall clock.
"""

import argparse
import time

import numpy as np
import torch
from mlr_plain import NUMPY, TABLES, by_loops, make_table, one_pass
from quick import parse

from torchrank import MLR
from torchrank.data.sources.points import load_points
from torchrank.functional import most_violated
from torchrank.functional.oracles.merged import merge
from torchrank.functional.oracles.whole_list import average_precision_at, average_precision_problem, dense, halving
from torchrank.solvers.cutting_plane.plane import add_cut, gap, start
from torchrank.solvers.cutting_plane.psi import add_metric_psi
from torchrank.solvers.metric_scores import metric_scores

MEASURES = [("auc", None), ("precision", 10), ("mrr", None), ("map", None), ("ndcg", 10), ("ndcg", None)]


def make_lists(lists, length, share, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(lists * length, generator=generator) < share).long()
    scores = torch.randn(len(labels), generator=generator, dtype=torch.float64) + labels
    return scores, labels, torch.arange(0, lists * length + 1, length)


def best_times(forms, repeats):
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):
        for name, run in forms.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def verdict(text, ratio, limit):
    print(f"  {text:44}{ratio:9.1f}x  (wanted: >= {limit}x) {'ok' if ratio >= limit else 'MISSED'}")


def hinges(found, scores):
    """loss - sum of coefficients * scores of each list; `found` may have fewer lists."""
    return np.array([loss - np.dot(c, s) for (c, loss), s in zip(found, scores, strict=False)])


def against_loops_and_numpy(options):
    lists, length = options.lists, options.length
    scores, labels, offsets = make_lists(lists, length, options.relevant)
    rows, relevant = scores.view(lists, length).numpy(), (labels.view(lists, length) > 0).numpy()
    TABLES[length] = make_table(length)
    some = [(list(map(float, s)), r.tolist()) for s, r in zip(rows, relevant, strict=True)][: options.loop_lists]
    print(f"{lists} lists of {length} entries, {options.relevant:.0%} relevant, loops on {len(some)} of them")
    for measure, k in MEASURES:
        forms = {
            "torchrank": lambda m=measure, k=k: most_violated(
                scores, labels, offsets, measure=m, k=k, max_length=length
            ),
            "numpy": lambda m=measure, k=k: [NUMPY[m](s, r, k) for s, r in zip(rows, relevant, strict=True)],
        }
        plain = {"loops": lambda m=measure, k=k: [by_loops(*one, m, k) for one in some]}
        if measure in ("auc", "precision"):
            plain["pass"] = lambda m=measure, k=k: [by_loops(*one, m, k, one_pass) for one in some]
        best = best_times(forms, options.repeats)
        best |= {name: value * lists / len(some) for name, value in best_times(plain, 3).items()}
        coefficients, loss = forms["torchrank"]()
        value = (loss - (coefficients * scores).view(lists, length).sum(1)).numpy()
        found = [hinges(run(), rows) for run in (forms["numpy"], *plain.values())]
        apart = max(np.abs(value[: len(other)] - other).max() for other in found)
        print(f"\n{measure if k is None else f'{measure}@{k}'}: "
              + ", ".join(f"{form} {1e3 * seconds:.1f} ms" for form, seconds in best.items())
              + f"; values differ by {apart:.0e}{'' if apart < 1e-10 else ' MISSED'}")  # fmt: skip
        verdict("loops / torchrank", best["loops"] / best["torchrank"], 20)
        verdict("numpy / torchrank", best["numpy"] / best["torchrank"], 1)
        if "pass" in best:
            print(f"  {'single pass / torchrank':44}{best['pass'] / best['torchrank']:9.1f}x")


def halving_against_dense(lists, length, share, repeats):
    scores, labels, offsets = make_lists(lists, length, share)
    merged = merge(scores, labels > 0, offsets, max_length=length)
    solvers = {"divide": halving, "dense": dense}
    forms = {
        name: lambda solve=solve: average_precision_at(merged, solve(average_precision_problem(merged)))
        for name, solve in solvers.items()
    }
    best = best_times(forms, max(1, repeats // 3))
    (a, loss), (b, other) = (run() for run in forms.values())
    value, other = (lost - (merged.scale * c * merged.scores()).sum(1) for c, lost in ((a, loss), (b, other)))
    print(f"\naverage precision on {lists} lists of {length}: divide and conquer {1e3 * best['divide']:.1f} ms, "
          f"dense {1e3 * best['dense']:.1f} ms; values differ by {(value - other).abs().max():.0e}")  # fmt: skip
    verdict("dense / divide and conquer", best["dense"] / best["divide"], 5)


def rounds_on_isolet(folder, measure, rounds=6, lists_at_once=168):
    """Seconds of one round by its parts, mean of all but the first two."""
    train = load_points("isolet", root=folder, val_fraction=0)["train"]
    ranker = MLR(train.num_features, transform={"name": "pca", "variance": 0.95})
    ranker.transform.fit(train.x, None)
    train, width = train.to("cpu", ranker.transform), ranker.transform.num_outputs
    plane, seconds = start((width, width)), np.zeros((rounds, 4))
    for number in range(rounds):
        psi, loss = torch.zeros(width, width, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for first in range(0, len(train), lists_at_once):
            clock = [time.perf_counter()]
            batch = train[first : first + lists_at_once]
            scores = metric_scores(batch, plane.probe)
            clock.append(time.perf_counter())
            coefficients, losses = most_violated(
                scores, batch.labels, batch.offsets, measure=measure, max_length=batch.max_length
            )
            clock.append(time.perf_counter())
            add_metric_psi(batch, coefficients, psi)
            loss += losses.sum()
            clock.append(time.perf_counter())
            seconds[number, :3] += np.diff(clock)
        before = time.perf_counter()
        plane = add_cut(plane, psi / len(train), loss / len(train), C=10.0, eps=1e-2)
        seconds[number, 3] = time.perf_counter() - before
    parts = seconds[2:].mean(0)
    text = ", ".join(f"{name} {part:.2f} s ({part / parts.sum():.0%})" for name, part in zip(PARTS, parts, strict=True))
    print(f"\nround of {measure} on IsoLet, {len(train)} lists of {len(train) - 1} rows, {width} features: "
          f"{parts.sum():.2f} s = {text}; gap after {rounds} rounds {float(gap(plane)):.2f}")  # fmt: skip


PARTS = ("lists and scores", "oracle", "sums", "solve")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=1000)
    parser.add_argument("--length", type=int, default=500)
    parser.add_argument("--relevant", type=float, default=0.1, help="share of the entries")
    parser.add_argument("--loop-lists", type=int, default=20, help="lists that the plain loops are timed on")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--long-lists", type=int, default=64, help="lists of average precision and its dense form")
    parser.add_argument("--long-length", type=int, default=3000, help="their length")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isolet", help="folder of Isolet1.mat ... Isolet5.mat; without it this part is left out")
    options = parse(parser, lists=10, length=50, loop_lists=2, repeats=1, long_lists=4, long_length=300)
    torch.set_num_threads(options.threads)
    print(f"float64, {options.threads} thread(s), best of {options.repeats}\n")
    against_loops_and_numpy(options)
    halving_against_dense(options.long_lists, options.long_length, options.relevant, options.repeats)
    for measure in ("auc", "mrr") if options.isolet else ():
        rounds_on_isolet(options.isolet, measure)


if __name__ == "__main__":
    main()
