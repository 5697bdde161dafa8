"""The fixed ensemble: its weights, the choice on validation lists, and the pooled comparison."""

import json
import sys

import numpy as np
import pytest
import torch

from notebooks import fixed_ensemble
from tests.rankers.small import lists

SETTINGS = {
    "listnet": [{"l2": 1e3}, {"l2": 1e-2}],
    "lambdarank": [{"lr": 0.1}],
    "domination": [{"l2": 1.0}],
    "gbdt": [{"rounds": 4, "min_leaf": 2, "leaves": 4, "options": fixed_ensemble.DRAWN[0]}],
}


@pytest.mark.filterwarnings("ignore")
def test_a_fold_is_measured_once_and_pooled(tmp_path, monkeypatch, capsys):
    sets, reads, made, own = {"train": lists(0), "val": lists(1), "test": lists(2)}, [], [], fixed_ensemble.systems
    monkeypatch.setattr(fixed_ensemble, "systems", lambda *given: made.append(own(*given)) or made[0])
    monkeypatch.setattr(fixed_ensemble, "read", lambda *given: reads.append(given) or sets)
    (tmp_path / "settings.json").write_text(json.dumps({**SETTINGS, "mq2008/2": SETTINGS}))
    command = ["x", str(tmp_path), "--out", str(tmp_path / "out"), "--settings", str(tmp_path / "settings.json")]
    monkeypatch.setattr(sys, "argv", [*command, "--data", "lightgbm"])
    for _ in range(2):
        fixed_ensemble.main()
    assert len(reads) == 1  # a finished fold is not repeated
    found = json.loads((tmp_path / "out/results.json").read_text())
    fold, (tuned, average) = found["folds"]["lightgbm"][0], found["pairs"]
    assert fold["chosen"]["listnet"] in SETTINGS["listnet"]
    gaps = np.array(fold["test"]["fixed ensemble"]) - np.array(fold["test"]["gbdt"])
    assert tuned["difference"] == pytest.approx(np.nanmean(gaps)) and tuned["queries"] == int((~np.isnan(gaps)).sum())
    assert (
        average["systems"] == ["fixed ensemble", "gbdt, 4 seeds"]
        and "| fixed ensemble - gbdt |" in capsys.readouterr().out
    )
    (rankers, _), test = made[0], sets["test"]
    fixed = rankers["fixed ensemble"]
    flat = [inner * weight for weight, group in fixed.used() for inner, _ in group.used()]
    assert flat == pytest.approx([1 / 6] * 3 + [1 / 8] * 4)
    half = [rankers[name](test.x, test.offsets) for name in ("linear mean", "gbdt, 4 seeds")]
    torch.testing.assert_close(fixed(test.x, test.offsets), sum(half) / 2)
