"""The fixed ensemble beside tuned trees, on MQ2008 and on LightGBM's example: half the weight to the mean of ListNet,
LambdaRank and Domination Rank, half to LightGBM over four seeds.

    python notebooks/fixed_ensemble.py FOLDER [--out runs/fixed_ensemble] [--settings FILE.json] [--data mq2008]

FOLDER holds `MQ2008` and `lightgbm-lambdarank`. Settings are chosen on validation lists, fold by fold; test lists are
measured once, at the end. `--settings` names the candidates, such as the winners of `torchrank tune`: a list of options
for each of listnet, lambdarank, domination and gbdt, for all folds or below a key such as "mq2008/3". A fold that is
finished is not repeated. The table and `results.json` lie in the folder of `--out`.
"""

import argparse
import json
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import torch

import torchrank
from torchrank import Ensemble, RankingDataModule, RankingSet
from torchrank.files import write_atomically
from torchrank.functional import ndcg
from torchrank.report.significance import bootstrap_interval, holm, outcomes, paired_t, randomisation

KINDS = {"listnet": "ListNet", "lambdarank": "LambdaRank", "domination": "DominationRank", "gbdt": "GBDTRanker"}
SEEDS = 4
FOLDS = {"mq2008": (1, 2, 3, 4, 5), "lightgbm": (1,)}
SOURCES = {"mq2008": ("MQ2008", {}), "lightgbm": ("lightgbm-lambdarank", {"qid": "file"})}
DRAWN = ({"feature_fraction": 0.8, "bagging_fraction": 0.8, "bagging_freq": 1},
         {"feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0})  # fmt: skip
TRANSFORMS = ("none", "standard", "quantile")
SETTINGS = {
    "listnet": [{"transform": t, "l2": l2} for t, l2 in product(TRANSFORMS, (1e-4, 1e-3, 1e-2, 1e-1))],
    "lambdarank": [{"transform": t, "lr": lr} for t, lr in product(TRANSFORMS, (1e-2, 3e-2, 1e-1))],
    "domination": [{"transform": t, "l2": l2} for t, l2 in product(TRANSFORMS, (0.1, 1.0, 10.0))],
    "gbdt": [
        {"lr": lr, "leaves": leaves, "min_leaf": least, "options": drawn}
        for lr, leaves, least, drawn in product((0.05, 0.1), (7, 15, 31), (20, 50), DRAWN)
    ],
}
FIXED, TUNED, AVERAGE = "fixed ensemble", "gbdt", "gbdt, 4 seeds"


def read(name: str, fold: int, folder: Path) -> dict[str, RankingSet]:
    below, options = SOURCES[name]
    module = RankingDataModule(name, fold=fold, root=str(folder / below), **options)
    module.setup()
    return module.sets


def values(ranker: torchrank.Ranker, lists: RankingSet) -> np.ndarray:
    """NDCG@10 of each list; nan without a relevant document."""
    with torch.no_grad():
        return ndcg(ranker(lists.x, lists.offsets).double(), lists.labels, lists.offsets, k=10).numpy()


def fitted(name: str, options: dict, sets: dict[str, RankingSet], **more: object) -> torchrank.Ranker:
    kind = getattr(torchrank, KINDS[name])
    given = {"threads": 1, **options, **more} if name == "gbdt" else {**options, **more}
    return kind(sets["train"].num_features, **given).fit(sets["train"], sets["val"])


def tuned(name: str, candidates: list[dict], sets: dict[str, RankingSet]) -> tuple[torchrank.Ranker, dict]:
    """The ranker with the best mean NDCG@10 on the validation lists, and its options; of equal ones the first."""
    rankers = [fitted(name, options, sets) for options in candidates]
    best = int(np.argmax([np.nanmean(values(ranker, sets["val"])) for ranker in rankers]))
    return rankers[best], candidates[best]


def systems(settings: dict[str, list[dict]], sets: dict[str, RankingSet]) -> tuple[dict[str, torchrank.Ranker], dict]:
    """All rankers that are compared, and the settings that validation chose."""
    found = {name: tuned(name, settings[name], sets) for name in KINDS}
    chosen = {name: options for name, (_, options) in found.items()}
    *linear, trees = (ranker for ranker, _ in found.values())
    seeds = [trees, *(fitted("gbdt", chosen["gbdt"], sets, seed=seed) for seed in range(1, SEEDS))]
    members = [linear, seeds]  # nested lists: half of the weight each
    every = {name: ranker for name, (ranker, _) in found.items()} | {AVERAGE: Ensemble(seeds), FIXED: Ensemble(members)}
    every["linear mean"] = Ensemble(linear)
    for way in ("greedy", "fitted"):
        every[f"{way} weights"] = Ensemble([*linear, *seeds], way).fit(sets["train"], sets["val"])
    return every, chosen


def run(name: str, fold: int, folder: Path, settings: dict, out: Path) -> dict:
    """What every system measured on the queries of a fold, which is written down."""
    path = out / f"{name}_{fold}.json"
    if path.exists():
        return json.loads(path.read_text())
    sets = read(name, fold, folder)
    rankers, chosen = systems(settings.get(f"{name}/{fold}", settings), sets)
    found = {
        "chosen": chosen,
        "test": {each: values(ranker, sets["test"]).tolist() for each, ranker in rankers.items()},
        "val": {each: float(np.nanmean(values(ranker, sets["val"]))) for each, ranker in rankers.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(json.dumps(found, indent=1).encode()))
    print(f"{name}, fold {fold}: {json.dumps(chosen)}", flush=True)
    return found


def pooled(found: dict[str, list[dict]], system: str) -> np.ndarray:
    return np.concatenate([fold["test"][system] for folds in found.values() for fold in folds])


def compared(
    found: dict[str, list[dict]], first: str = FIXED, others: tuple[str, ...] = (TUNED, AVERAGE)
) -> list[dict]:
    """The differences of a system to others over all queries: intervals and paired tests, also adjusted by Holm."""
    rows = []
    for other in others:
        a, b = pooled(found, first), pooled(found, other)
        low, high = bootstrap_interval(a, b)
        row = {
            "systems": [first, other],
            "queries": int((~np.isnan(a - b)).sum()),
            "difference": float(np.nanmean(a - b)),
        }
        rows.append(row | {"interval": [low, high], "t": paired_t(a, b), "randomisation": randomisation(a, b),
                           "better, equal, worse": outcomes(a, b)})  # fmt: skip
    for row, adjusted in zip(rows, holm([row["randomisation"] for row in rows]), strict=True):
        row["randomisation, holm"] = float(adjusted)
    return rows


def table(found: dict[str, list[dict]], rows: list[dict]) -> str:
    """Means of all systems over the queries of each data set and of all, then the differences, in Markdown."""
    names = list(found)
    lines = [f"| system | {' | '.join(names)} | pooled |", "|---" * (len(names) + 2) + "|"]
    for system in next(iter(found.values()))[0]["test"]:
        means = [np.nanmean(pooled({name: found[name]}, system)) for name in names]
        lines.append(
            f"| {system} | {' | '.join(f'{mean:.4f}' for mean in (*means, np.nanmean(pooled(found, system))))} |"
        )
    lines += ["", "| difference | queries | NDCG@10 | 95% interval | t test | randomisation | Holm |", "|---" * 7 + "|"]
    for row in rows:
        low, high = row["interval"]
        tests = " | ".join(f"{row[test]:.3f}" for test in ("t", "randomisation", "randomisation, holm"))
        told = f"{row['systems'][0]} - {row['systems'][1]} | {row['queries']} | {row['difference']:+.4f}"
        lines.append(f"| {told} | {low:+.4f} .. {high:+.4f} | {tests} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/fixed_ensemble"))
    parser.add_argument("--settings", type=Path, help="candidates of each ranker, in JSON")
    parser.add_argument("--data", nargs="+", choices=FOLDS, default=list(FOLDS))
    options = parser.parse_args()
    settings = SETTINGS if options.settings is None else json.loads(options.settings.read_text())
    warnings.simplefilter("ignore")
    found = {
        name: [run(name, fold, options.folder, settings, options.out) for fold in FOLDS[name]] for name in options.data
    }
    rows = compared(found)
    text = json.dumps({"pairs": rows, "folds": found}, indent=1)
    write_atomically(options.out / "results.json", lambda file: file.write(text.encode()))
    print(table(found, rows))


if __name__ == "__main__":
    main()
