"""Better retrieval from judged queries: adapters and other metrics beside the vectors as they are, on Cranfield.

    python notebooks/cranfield.py FOLDER [--labels binary] [--folds 10] [--only adapter GMML] [--out runs/cranfield]
    python notebooks/cranfield.py FOLDER --curve [--labels binary] [--folds 10] [--out runs/cranfield]

FOLDER is in BEIR's layout, with vectors. Fold f divides the queries by `default_rng((0, f))`: a fifth for testing, a
fifth of the others for validation. Every method is fitted on the training queries; what has settings has them chosen
on validation, fold by fold, with "change nothing" among them. Test queries are measured once, at the end. What is
finished is not repeated. The tables lie in the folder of `--out`.

`--curve` asks how many training queries are enough: in each fold, the adapter of the queries learns from the first 10,
20, ... of the training queries, in an order drawn for the fold. Validation and test queries stay the same. `curve.md`
has the mean gain over the folds with its interval, `curve.png` is the picture.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import stdtrit

from torchrank import GMML, LGMML, MLR, RMLR, Adapter, LambdaRank, Ranker, RankingSet
from torchrank.data.sources.embeddings import load_embeddings
from torchrank.files import write_atomically
from torchrank.functional import LOSSES, average_precision, evaluate_ranks, ndcg, search
from torchrank.report.plots.runs import blank
from torchrank.report.significance import bootstrap_interval, holm, randomisation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSINE, CHOSEN = "cosine: the vectors as they are", "adapter: loss, pull and side by validation"
PULLS, NAMED = (0.1, 0.3, 1.0), ("domination", "softmax", "lambdarank")
LEFT_OUT = ("ordinal", "structured_hinge", "neural_ndcg")  # not a score, or minutes a fit
THRESHOLDS = {"binary": 1.0, "graded": None}
DEPTH = 100  # documents that are ranked again
SIZES = (10, 20, 40, 80, 144)  # training queries of the curve
OF_CURVE = (("domination", 0.3), ("domination", 1.0), ("softmax", 0.3))  # losses and pulls: three fits a point


@dataclass
class Fold:
    """The sets of a fold, and the texts of the folder."""

    sets: dict[str, RankingSet]
    texts: dict[str, str]  # of documents and queries, by side and id


Values = tuple[np.ndarray, np.ndarray]  # NDCG@10 and average precision of each test query
Method = Callable[[Fold], Values]


def adapter(**options: object) -> Ranker:
    return Adapter(384, **{"negatives": "all"} | options)


def methods() -> dict[str, Method]:
    """The methods by their names in the table."""
    every = [name for name in LOSSES if name not in LEFT_OUT]
    strengths = (1.0, 10.0, 100.0)
    return {
        COSINE: fitted([partial(adapter, rounds=1)]),
        "Euclidean distance": fitted([partial(adapter, rounds=1, similarity="euclidean")]),
        "BM25": bm25,
        "linear adapter, triplet margin": fitted(
            [partial(adapter, loss="hinge", negatives="random", num_negatives=1, pull=0.0)]
        ),
        "linear adapter, in-batch softmax": fitted(
            [partial(adapter, loss="softmax", negatives="batch", batch_queries=10, pull=0.0)]
        ),
        CHOSEN: fitted(
            [partial(adapter, loss=a, pull=b, side=c) for a, b, c in product(NAMED, PULLS, ("query", "both"))]
        ),
        "adapter: the defaults": fitted([lambda: Adapter(384)]),
        **{f"adapter: {loss}, pull by validation": with_loss(loss) for loss in every},
        "adapter: low rank (16)": fitted([partial(adapter, rank=16, pull=pull) for pull in PULLS]),
        "adapter: GMML around the identity": fitted([partial(adapter, solver="gmml")]),
        "adapter: MLR around the identity": fitted([partial(adapter, solver="mlr")]),
        "adapter: R-MLR around the identity": fitted([partial(adapter, solver="rmlr")]),
        "GMML": fitted([lambda: GMML(384)]),
        "L-GMML by query": fitted([lambda: LGMML(384)]),
        "MLR (trace)": fitted([partial(MLR, 384, C=C, transform="unit", rounds=30) for C in strengths]),
        "R-MLR": fitted([partial(RMLR, 384, C=C, transform="unit", rounds=30) for C in strengths]),
        "reranker: 100 documents, 4 features": reranked,
    }


def with_loss(loss: str) -> Method:
    """An adapter with this loss; all pairs of whole lists take too long, so it has mined negatives."""
    return fitted([partial(adapter, loss=loss, pull=pull, negatives="mined") for pull in PULLS])


def fitted(candidates: list[Callable[[], Ranker]]) -> Method:
    """The candidate with the best validation; where there are several, the vectors as they are take part."""

    def method(fold: Fold) -> Values:
        train, val, test = (fold.sets[name] for name in ("train", "val", "test"))
        found = [adapter(rounds=1)] if len(candidates) > 1 else []
        found += [make().fit(train, val) for make in candidates]
        best = found[0] if len(found) == 1 else max(found, key=lambda ranker: measured(ranker, val)[0].mean())
        return measured(best, test)

    return method


def measured(ranker: Ranker, lists: RankingSet) -> Values:
    """NDCG@10 and average precision of each query."""
    if ranker.ranks_corpus:
        batch = lists.to("cpu", ranker.transform).judged()[:]
        ranks, size = ranker.eval().test_step(batch), len(batch.x)
        found = evaluate_ranks(ranks, batch.labels, batch.lists, num_documents=size, measures=["ndcg@10", "map"])
        return found["ndcg@10"].numpy(), found["map"].numpy()
    batch = lists.to("cpu", ranker.transform)[:]
    with torch.no_grad():
        return by_scores(ranker.eval().test_step(batch).double(), batch.labels, batch.offsets)


def by_scores(scores: torch.Tensor, labels: torch.Tensor, offsets: torch.Tensor) -> Values:
    return ndcg(scores, labels, offsets, k=10).numpy(), average_precision(scores, labels, offsets).numpy()


# ---- words, and ranking again ----------------------------------------------------------------------------------------


def word_scores(fold: Fold, lists: RankingSet) -> torch.Tensor:
    """BM25 (Q, n) of the texts, by bm25s with its defaults."""
    import bm25s

    texts = [fold.texts[f"document {each}"] for each in lists.document_ids]
    asked = [fold.texts[f"query {each}"] for each in lists.query_ids]
    tokens = partial(bm25s.tokenize, stopwords="en", show_progress=False)
    index = bm25s.BM25()
    index.index(tokens(texts), show_progress=False)
    return torch.from_numpy(np.stack([index.get_scores(each) for each in tokens(asked, return_ids=False)])).double()


def bm25(fold: Fold) -> Values:
    test = fold.sets["test"]
    return by_scores(word_scores(fold, test).flatten(), test[:].labels, test.offsets)


def candidates_of(fold: Fold, lists: RankingSet, adapted: list[Ranker]) -> tuple[RankingSet, torch.Tensor]:
    """The top of each query by cosine as lists with features: cosine, its rank, BM25, and the mean adapted cosine."""
    unit = torch.nn.functional.normalize
    found = search(unit(lists.queries), unit(lists.x), DEPTH)
    learned = torch.stack([each.score(lists[:]).view(len(lists), -1).gather(1, found.rows) for each in adapted]).mean(0)
    ranks = torch.arange(1, DEPTH + 1).log().expand_as(found.scores)
    features = torch.stack((found.scores, ranks, word_scores(fold, lists).float().gather(1, found.rows), learned), 2)
    labels = lists[:].labels.view(len(lists), -1)
    return RankingSet(
        features.flatten(0, 1), labels.gather(1, found.rows).flatten(), group=[DEPTH] * len(lists)
    ), found.rows


def reranked(fold: Fold) -> Values:
    """The adapted cosine of a training query comes from adapters that have not seen it: of five parts, out of fold."""
    train, val, test = (fold.sets[name] for name in ("train", "val", "test"))
    parts = np.arange(len(train)) % 5
    out_of_fold, whole = [], []
    for part in range(5):
        rest, held = (train.subset(np.flatnonzero(chosen)) for chosen in (parts != part, parts == part))
        whole.append(adapter().fit(rest, val))
        out_of_fold.append(candidates_of(fold, held, whole[-1:])[0])
    learned = RankingSet(
        torch.cat([each.x for each in out_of_fold]),
        torch.cat([each.labels for each in out_of_fold]),
        group=[DEPTH] * len(train),
    )
    ranker = LambdaRank(4).fit(learned, candidates_of(fold, val, whole)[0])
    top, rows = candidates_of(fold, test, whole)
    with torch.no_grad():
        scores = ranker(top.x, top.offsets).view(len(test), -1).double()
    unit = torch.nn.functional.normalize
    table = (unit(test.queries) @ unit(test.x).T).double() - 1e6  # the others stay below, in their order
    table.scatter_(1, rows, scores)
    return by_scores(table.flatten(), test[:].labels, test.offsets)


# ---- all folds -------------------------------------------------------------------------------------------------------


def read_fold(root: Path, number: int, threshold: float | None) -> Fold:
    texts = {}
    for side, name in (("document", "corpus"), ("query", "queries")):
        for line in (root / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            content = json.loads(line)
            texts[f"{side} {content['_id']}"] = content["text"]
    return Fold(load_embeddings(root, fold=number, threshold=threshold), texts)


def results(root: Path, number: int, threshold: float | None, kept: Path, only: list[str] | None) -> Iterator[None]:
    """Measure what is not in the file of the fold yet; yields after each method."""
    found = json.loads(kept.read_text()) if kept.exists() else {}
    fold = read_fold(root, number, threshold)
    for name, method in methods().items():
        if name in found or (only is not None and not any(part in name for part in (*only, COSINE))):
            continue
        start = time.process_time()
        gains, precisions = method(fold)
        seconds = time.process_time() - start
        found[name] = {"ndcg@10": gains.tolist(), "map": precisions.tolist(), "cpu seconds": seconds}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
        print(f"fold {number}: {name}: {gains.mean():.4f}, {seconds:.0f} s", flush=True)
        yield


def table(folds: dict[int, dict[str, dict]]) -> str:
    """Means over the test queries of all folds, and the gains over the cosine; p of the randomisation test, by Holm."""
    names = [name for name in methods() if all(name in fold for fold in folds.values())]
    pooled = {
        name: {key: np.concatenate([fold[name][key] for fold in folds.values()]) for key in ("ndcg@10", "map")}
        for name in names
    }
    base = pooled[COSINE]["ndcg@10"]
    others = [name for name in names if name != COSINE]
    p = dict(zip(others, holm([randomisation(pooled[name]["ndcg@10"], base) for name in others]), strict=True))
    lines = [
        "| method | NDCG@10 | MAP | gain in NDCG@10 | 95% interval | deviation between folds | p, Holm | CPU s |",
        "|---|" + "---|" * 7,
    ]
    for name in names:
        ours = pooled[name]["ndcg@10"]
        cells = [name, f"{ours.mean():.4f}", f"{pooled[name]['map'].mean():.4f}", *[""] * 4]
        if name in p:
            low, high = bootstrap_interval(ours, base)
            each = [np.mean(fold[name]["ndcg@10"]) - np.mean(fold[COSINE]["ndcg@10"]) for fold in folds.values()]
            deviation = np.std(each, ddof=1) if len(each) > 1 else np.nan
            gained = f"{(ours - base).mean():+.4f}"
            cells[3:] = [gained, f"{low:+.4f} to {high:+.4f}", f"{deviation:.4f}", f"{p[name]:.3g}"]
        seconds = np.mean([fold[name]["cpu seconds"] for fold in folds.values()])
        lines.append("| " + " | ".join([*cells, f"{seconds:.1f}"]) + " |")
    return "\n".join(lines) + "\n"


# ---- the curve -------------------------------------------------------------------------------------------------------


def gains(root: Path, number: int, threshold: float | None, kept: Path) -> dict[int, float]:
    """The mean gain in NDCG@10 over the cosine by the number of training queries; measured once, kept in a file."""
    found = {int(size): gain for size, gain in json.loads(kept.read_text()).items()} if kept.exists() else {}
    fold = Fold(load_embeddings(root, fold=number, threshold=threshold), {})
    train = fold.sets["train"]
    order = np.random.default_rng((1, number)).permutation(len(train))
    learned = fitted([partial(adapter, loss=loss, pull=pull) for loss, pull in OF_CURVE])
    as_they_are = fitted([partial(adapter, rounds=1)])(fold)[0].mean()
    for size in SIZES:
        if size in found or size > len(train):
            continue
        smaller = Fold(fold.sets | {"train": train.subset(order[:size])}, {})
        found[size] = float(learned(smaller)[0].mean() - as_they_are)
        write_atomically(kept, lambda file: file.write(json.dumps(found).encode()))
        print(f"fold {number}: {size} training queries: {found[size]:+.4f}", flush=True)
    return found


def points(folds: list[dict[int, float]]) -> list[tuple[int, float, float]]:
    """Training queries, mean gain over the folds, and half of its 95% interval by the t distribution."""
    found = []
    for size in sorted(set.intersection(*(set(fold) for fold in folds))):
        values = np.array([fold[size] for fold in folds])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        found.append((size, float(values.mean()), float(stdtrit(len(values) - 1, 0.975) * error)))
    return found


def curve_table(folds: list[dict[int, float]]) -> str:
    lines = [
        "| training queries | gain in NDCG@10 | 95% interval over folds | folds with a loss |",
        "|---|---|---|---|",
    ]
    for size, mean, half in points(folds):
        losses = sum(fold[size] < 0 for fold in folds)
        lines.append(f"| {size} | {mean:+.4f} | {mean - half:+.4f} to {mean + half:+.4f} | {losses} of {len(folds)} |")
    return "\n".join(lines) + "\n"


def draw(folds: list[dict[int, float]]) -> "Figure":
    """The mean gain with its interval, and the folds as thin lines behind it."""
    figure = blank(6.5, 3.8)
    axes = figure.add_subplot(xlabel="training queries", ylabel="gain in NDCG@10 over the cosine")
    sizes, means, halves = zip(*points(folds), strict=True)
    for fold in folds:
        axes.plot(sizes, [fold[size] for size in sizes], color="0.8", linewidth=0.8)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.errorbar(sizes, means, yerr=halves, color="C0", marker="o", capsize=3)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_title(f"An adapter of the queries: mean of {len(folds)} folds", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def curve(root: Path, numbers: range, labels: str, out: Path) -> None:
    """Measure the folds, write `curve.md` and `curve.png`."""
    out.mkdir(parents=True, exist_ok=True)
    folds = [gains(root, number, THRESHOLDS[labels], out / f"{labels}-{number}-curve.json") for number in numbers]
    text = curve_table(folds)
    (out / "curve.md").write_text(text)
    draw(folds).savefig(out / "curve.png", dpi=110)
    print(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="FOLDER")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--labels", choices=list(THRESHOLDS), default="binary", help="binary: grades of 1 and more")
    parser.add_argument("--only", nargs="*", metavar="PART", help="methods whose names contain one of these")
    parser.add_argument("--curve", action="store_true", help="gains by the number of training queries, and no table")
    parser.add_argument("--out", type=Path, default=Path("runs/cranfield"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    numbers, threshold = range(1, options.folds + 1), THRESHOLDS[options.labels]
    if options.curve:
        return curve(options.root, numbers, options.labels, options.out)
    places = {number: options.out / f"{options.labels}-{number}.json" for number in numbers}
    for number, kept in places.items():
        for _ in results(options.root, number, threshold, kept, options.only):
            pass
    text = table({number: json.loads(kept.read_text()) for number, kept in places.items()})
    (options.out / f"{options.labels}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
