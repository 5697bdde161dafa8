"""What `transform=auto` decides between: transforms under every ranker that has it, by cross-validation inside training
parts.

    python notebooks/transforms.py FOLDER [--sets mq2008,lightgbm,lognormal,counts,gaussian] [--rankers listnet,...]

FOLDER holds `MQ2008` and `lightgbm-lambdarank`; the training part alone of both is read, and its queries make up
three folds. A cell is the mean NDCG@10 of the held-out queries (0 for a query without relevant documents). Options are
the defaults; rankers that learn by gradient have 25 epochs. Prints a Markdown table.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch

import torchrank
from torchrank import RankingSet
from torchrank.functional import ndcg

RANKERS = {
    "listnet": "ListNet", "lambdarank": "LambdaRank", "domination": "DominationRank", "neural": "NeuralRanker",
    "svmmap": "SVMMap", "pamir": "PAMIR", "queryknn": "QueryKNN",
}  # fmt: skip
TRANSFORMS = {"standard": "standard", "quantile": "quantile", "log1p, standard": ["log1p", "standard"], "auto": "auto"}
SETS = ("mq2008", "lightgbm", "lognormal", "counts", "gaussian")
FOLDS, EPOCHS = 3, 25


def read(name: str, folder: Path) -> RankingSet:
    """The training part of a data set, or a drawn one of 120 lists."""
    if name == "mq2008":
        return torchrank.read_letor(folder / "MQ2008" / "Fold1" / "train.txt")
    if name == "lightgbm":
        return torchrank.read_letor(folder / "lightgbm-lambdarank" / "rank.train", qid="file")
    return drawn(name)


def drawn(kind: str) -> RankingSet:
    """Grades of a noisy linear function of 20 normal features, which the ranker sees through another function."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(5, 25, 120)
    z = draw.normal(size=(lengths.sum(), 20))
    weight = draw.normal(size=20) * (draw.random(20) < 0.5)
    query = np.repeat(draw.normal(size=(120, 20)), lengths, 0)
    labels = np.digitize(z @ weight / np.linalg.norm(weight) + 0.7 * draw.normal(size=len(z)), [0.3, 1.0, 1.8])
    x = {
        "gaussian": lambda: z + 0.3 * query,
        "lognormal": lambda: np.exp(1.5 * z + query),
        "counts": lambda: draw.poisson(np.exp(1.2 * z + 0.5 * query + 1)),
    }[kind]()
    return RankingSet(x.astype(np.float32), labels.astype(np.float32), group=lengths)


def cross_validated(lists: RankingSet, ranker: str, transform: str) -> float:
    """The mean NDCG@10 of held-out queries."""
    part = np.random.default_rng(1).permutation(len(lists)) % FOLDS
    values = []
    for fold in range(FOLDS):
        train, held_out = (lists.subset(np.flatnonzero(chosen)) for chosen in (part != fold, part == fold))
        torch.manual_seed(0)
        made = getattr(torchrank, RANKERS[ranker])(lists.num_features, transform=TRANSFORMS[transform])
        made.fit(train, epochs=EPOCHS) if ranker in ("lambdarank", "neural") else made.fit(train)
        with torch.no_grad():
            scores = made(held_out.x, held_out.offsets)
        values.append(ndcg(scores, held_out.labels, held_out.offsets, k=10, empty=0.0))
    return float(torch.cat(values).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--rankers", default=",".join(RANKERS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rankers = given.rankers.split(",")
    print("| training part | | " + " | ".join(rankers) + " |")
    print("|---" * (len(rankers) + 2) + "|")
    for name in given.sets.split(","):
        lists = read(name, given.folder)
        for transform in TRANSFORMS:
            cells = (f"{cross_validated(lists, ranker, transform):.3f}".lstrip("0") for ranker in rankers)
            print(f"| {name} | {transform} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
