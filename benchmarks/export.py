"""Scores of exported rankers beside the ranker's own: every ranker that has the form, on the test lists of a fold.

    python benchmarks/export.py [--root MQ2008/Fold1] [--only ListNet GBDTRanker] [--quick]

The root holds train.txt, vali.txt and test.txt; without one the lists are synthetic. Differences are relative to the
largest score of the list, if that is above 1. ONNX runs in onnxruntime, JSON through the plain reader.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import onnxruntime
import torch
from quick import parse

import torchrank
from torchrank.data import synthetic_splits
from torchrank.export import reader
from torchrank.export.table import FORMS

FILES = {"train": "train.txt", "val": "vali.txt", "test": "test.txt"}
ROUNDS = {"RankBoost": 100, "AdaRank": 50, "GBDTRanker": 100, "PAMIR": 3}  # of fits that would take minutes
LISTS = 30  # for the plain reader, which is slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of a fold")
    parser.add_argument("--only", nargs="+", default=[name for name, forms in FORMS.items() if forms.graphs])
    arguments = parse(parser, only=["ListNet"])
    warnings.simplefilter("ignore")
    sets = synthetic_splits(num_queries=60, num_features=20)
    if arguments.root is not None:
        sets = {split: torchrank.read_letor(arguments.root / name) for split, name in FILES.items()}
    print(f"{len(sets['test'])} test lists; largest difference of onnx, pt2 and json")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            options = {"rounds": ROUNDS[name]} if name in ROUNDS else {}
            ranker = getattr(torchrank, name)(sets["train"].num_features, **options)
            ranker.fit(sets["train"], sets["val"], epochs=None if ranker.by_rounds else 3)
            found = differences(ranker, sets["test"], Path(folder, name))
            print(f"{name:15s}", *(" " * 7 if each is None else f"{each:.1e}" for each in found), flush=True)


def differences(ranker: torchrank.Ranker, lists: torchrank.RankingSet, path: Path) -> list[float | None]:
    session = onnxruntime.InferenceSession(ranker.export(path.with_suffix(".onnx")))
    program = torch.export.load(ranker.export(path.with_suffix(".pt2"))).module()
    plain = FORMS[type(ranker).__name__].json and ranker.hparams.get("scorer", "linear") == "linear"
    model = json.loads(ranker.export(path.with_suffix(".json")).read_text()) if plain else None
    worst = [0.0, 0.0, None if model is None else 0.0]
    for position in range(len(lists)):
        x = lists[position].x.float()
        with torch.no_grad():
            expected = ranker(x, group=[len(x)]).float()
        scores = [torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), program(x)]
        if model is not None and position < LISTS:
            scores.append(torch.tensor(reader.score(model, x.tolist())))
        for form, each in enumerate(scores):
            difference = (each - expected).abs().max() / expected.abs().max().clamp(min=1)
            worst[form] = max(worst[form], float(difference))
    return worst


if __name__ == "__main__":
    main()
