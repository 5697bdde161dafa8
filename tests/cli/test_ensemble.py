"""Ensembles and students on the command line: from run folders, in one line each."""

import pytest
import torch

import torchrank
from tests.cli.running import SMALL, quick_train, results
from torchrank import Ensemble, ListNet, SingleFeature
from torchrank.data import synthetic_splits


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders as runs leave them."""
    cwd = tmp_path_factory.mktemp("runs")
    train = synthetic_splits(num_queries=40, mean_length=8.0, num_features=20)["train"]
    for name, ranker in (("listnet", ListNet(20)), ("singlefeature", SingleFeature(20, transform="quantile"))):
        ranker.fit(train).save(cwd / name / "checkpoints/best.ckpt")
    return cwd


def test_an_ensemble_of_run_folders_chooses_its_weights(runs):
    done = quick_train(*SMALL, "model=ensemble", "model.members=[listnet,singlefeature]", "model.weights=greedy",
                       "hydra.run.dir=whole", cwd=runs)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "eval mode" not in done.stderr  # which members are in, as they should
    found = results(runs / "whole")
    assert found["ranker"] == "Ensemble" and "alone" in found["findings"]["weights"]
    assert "weights: " in done.stdout and "0 ListNet" in done.stdout
    loaded = torchrank.load(runs / "whole/checkpoints/best.ckpt")
    assert isinstance(loaded, Ensemble) and found["val"]["default"]["measures"]["ndcg@10"] > 0


def test_members_of_other_features_are_refused_in_one_line(runs):
    wide = [*SMALL[:2], "data.num_features=21"]
    done = quick_train("model=ensemble", *wide, "model.members=[listnet]", cwd=runs)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "member 0 (ListNet) has 20 features, but the data has 21" in done.stderr, done.stderr


def test_a_student_learns_from_a_run(runs):
    done = quick_train(*SMALL, "model=listnet", "distil.teacher=singlefeature", "hydra.run.dir=student", cwd=runs)
    assert done.returncode == 0, done.stderr
    plain, student = (torchrank.load(runs / name / "checkpoints/best.ckpt") for name in ("listnet", "student"))
    assert not torch.equal(plain.scorer.weight, student.scorer.weight)
    teacher = torchrank.load(runs / "singlefeature/checkpoints/best.ckpt")
    assert int(student.scorer.weight.abs().argmax()) == int(teacher.feature)
    assert results(runs / "student")["settings"] == {"distil.teacher": "singlefeature"} | {
        each.split("=")[0]: pytest.approx(float(each.split("=")[1])) for each in SMALL
    }
