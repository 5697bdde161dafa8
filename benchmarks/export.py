"""Scores of exported rankers beside the ranker's own: every ranker that has the form.

The lists are the test lists of MQ2008's first fold where the folder of data sets has it, synthetic ones otherwise.
Differences are relative to the largest score of the list, if that is above 1. ONNX runs in onnxruntime, JSON through
the plain reader.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

import torchrank
from benchmarks.suite import Row, Setting, peer
from torchrank.data import synthetic_splits
from torchrank.export import reader
from torchrank.export.table import FORMS

FILES = {"train": "train.txt", "val": "vali.txt", "test": "test.txt"}
ROUNDS = {"RankBoost": 100, "AdaRank": 50, "GBDTRanker": 100, "PAMIR": 3}  # of fits that would take minutes
LISTS = 30  # for the plain reader, which is slow


def rows(setting: Setting) -> Iterator[Row]:
    onnxruntime = peer("onnxruntime", "export")
    sets = synthetic_splits(num_queries=60, num_features=20)
    fold = setting.data and next(setting.data.glob("**/Fold1"), None)
    if fold and not setting.quick:
        sets = {split: torchrank.read_letor(fold / name) for split, name in FILES.items()}
    names = ["ListNet"] if setting.quick else [name for name, forms in FORMS.items() if forms.graphs]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            ranker = fitted(name, sets)
            found = differences(ranker, sets["test"], Path(folder, name), onnxruntime)
            for form, each in zip(("onnx", "pt2", "json"), found, strict=True):
                if each is not None:
                    yield Row(f"{name} as {form}", each, "", "difference of scores promised:", 1e-5, bar=1)


def fitted(name: str, sets: dict[str, torchrank.RankingSet]) -> torchrank.Ranker:
    options = {"rounds": ROUNDS[name]} if name in ROUNDS else {}
    ranker = getattr(torchrank, name)(sets["train"].num_features, **options)
    return ranker.fit(sets["train"], sets["val"], epochs=None if ranker.by_rounds else 3)


def differences(
    ranker: torchrank.Ranker, lists: torchrank.RankingSet, path: Path, onnxruntime: ModuleType
) -> list[float | None]:
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
