"""`python train.py` as a user starts it: what it prints, writes, resumes and refuses."""

import contextlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import torchrank
from tests.cli.running import COMMAND, ROOT, SMALL, quick_train, results, train
from torchrank.record import alone_in


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run that the tests look at from several sides."""
    cwd = tmp_path_factory.mktemp("run")
    done = quick_train(*SMALL, "model=lambdarank", "trainer.max_epochs=4", "conventions=[default,letor]",
                 "hydra.run.dir=out", cwd=cwd)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, cwd


def test_it_prints_a_table_with_its_convention(run):
    assert "lambdarank on synthetic, fold 1, test" in run[0].stdout
    assert "default: gain 2^y-1, discount 1/log2(1+rank), ties stable" in run[0].stdout
    assert "letor: gain 2^y-1, discount 1, 1, 1/log2(rank)" in run[0].stdout
    assert "of 8 queries have no relevant document" in run[0].stdout


def test_it_writes_its_results(run):
    found = results(run[1] / "out")
    assert (found["name"], found["ranker"], found["data"]) == ("lambdarank", "LambdaRank", "synthetic")
    assert found["config"]["trainer"]["max_epochs"] == 4 and found["settings"]["trainer.max_epochs"] == 4
    assert found["num_lists"] == {"train": 24, "val": 8, "test": 8}
    assert found["versions"]["torch"] == torch.__version__ and found["peak_memory_mb"] > 0
    per_query = np.load(run[1] / "out" / found["per_query"], allow_pickle=False)
    assert len(per_query["query"]) == 8
    for name, part in found["test"].items():
        for measure, value in part["measures"].items():
            assert np.nanmean(per_query[f"{name}/{measure}"]) == pytest.approx(value, abs=1e-12)
    assert {path.name for path in (run[1] / "out").iterdir()} == {
        ".hydra", "checkpoints", "log", "per_query.npz", "results.json", "train.log"
    }  # fmt: skip
    assert found["certificate"] is None and found["findings"] == {} and found["steps"] == 4


def test_a_run_without_test_has_validation_only(run):
    done = quick_train(
        *SMALL, "model=listnet", "test=false", "measures=[p@5,map]", "conventions=[letor]", "monitor=val/map",
        "hydra.run.dir=untested", cwd=run[1],
    )  # fmt: skip
    assert done.returncode == 0 and "listnet on synthetic, fold 1, validation" in done.stdout, done.stderr
    found = results(run[1] / "untested")
    assert "test" not in found and found["per_query"] is None and not (run[1] / "untested/per_query.npz").exists()
    assert list(found["val"]) == ["letor"] and list(found["val"]["letor"]["measures"]) == ["p@5", "map"]
    assert found["selection"]["value"] == found["val"]["letor"]["measures"]["map"]
    certificate = found["certificate"]
    assert certificate.keys() == {"name", "found", "limit", "bounds", "proved", "text"} and certificate["proved"]
    assert certificate["found"] <= certificate["limit"] and f"Certificate: {certificate['text']}" in done.stdout


def test_the_best_epoch_is_tested(run):
    found = results(run[1] / "out")
    ranker = torchrank.load(run[1] / "out/checkpoints/best.ckpt")
    sets = torchrank.data.synthetic.mslr.synthetic_splits(40, num_features=20, mean_length=8.0)
    with torch.no_grad():
        for split in ("val", "test"):
            lists = sets[split]
            scores = ranker(lists.x, lists.offsets).double()
            values = torchrank.functional.ndcg(scores, lists.labels, lists.offsets, k=10)
            assert values.nanmean().item() == pytest.approx(found[split]["default"]["measures"]["ndcg@10"], abs=1e-12)


def test_a_checkpoint_is_tested_without_training(run):
    done = quick_train(*SMALL, "train=false", "ckpt_path=out/checkpoints/best.ckpt",
                 "conventions=[default,letor]", "hydra.run.dir=again", cwd=run[1])  # fmt: skip
    assert done.returncode == 0, done.stderr
    again, out = (results(run[1] / name) for name in ("again", "out"))
    assert again["test"] == out["test"]
    assert again["name"] == "LambdaRank" and again["options"] == out["options"]
    done = quick_train(*SMALL, "train=false", "ckpt_path=out/checkpoints/best.ckpt", "conventions=[default,letor]",
                 "hydra.run.dir=again", cwd=run[1])  # fmt: skip
    assert "Skipping: results for this configuration already exist" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_an_interrupted_fit_says_how_to_resume(tmp_path, sent, code):
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, "model=lambdarank", "trainer.max_epochs=100000",
               "~callbacks.early_stopping", 'hydra.run.dir="out=1"']  # fmt: skip
    last = tmp_path / "out=1/checkpoints/last.ckpt"
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(600):
        if last.exists():
            break
        time.sleep(0.1)
    for _ in range(6):  # Python loses an interrupt that comes while an object is deleted
        process.send_signal(sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            break
    _, errors = process.communicate(timeout=10)
    assert process.returncode == code and f"Resume with 'ckpt_path=\"{last}\"'." in errors


def test_one_run_of_an_experiment(tmp_path):
    pytest.importorskip("sklearn")
    done = quick_train("experiment=uci", "data.source=wine", "model=metric_baseline", "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 0 and "knn_error@1" in results(tmp_path / "out")["test"]["default"]["measures"], (
        done.stderr
    )


def test_early_stopping_is_told(tmp_path):
    done = quick_train(*SMALL, "model=lambdarank", "model.lr=1e-30", "trainer.max_epochs=9",
                       "callbacks.early_stopping.patience=2", cwd=tmp_path)  # fmt: skip
    assert "Stopped early: no better val/ndcg@10 in the last 2 validations" in done.stdout, done.stderr


def test_a_fit_is_not_resumed_with_other_options(run):
    last = run[1] / "out/checkpoints/last.ckpt"
    before = last.read_bytes()
    options = ["model=lambdarank", "model.lr=0.7", f"ckpt_path={last}", "hydra.run.dir=other"]
    done = quick_train(*SMALL, *options, cwd=run[1])
    assert done.returncode != 0 and "but this LambdaRank has lr=0.7" in done.stderr
    assert last.read_bytes() == before and not (run[1] / "other/results.json").exists()


def test_a_fit_is_resumed(run):
    done = quick_train(*SMALL, "model=lambdarank", "ckpt_path=out/checkpoints/last.ckpt", "trainer.max_epochs=6",
                 "hydra.run.dir=resumed", cwd=run[1])  # fmt: skip
    whole = quick_train(*SMALL, "model=lambdarank", "trainer.max_epochs=6", "hydra.run.dir=whole", cwd=run[1])
    assert done.returncode == whole.returncode == 0, done.stderr + whole.stderr
    one, other = (torchrank.load(run[1] / name / "checkpoints/last.ckpt") for name in ("out", "whole"))
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    assert results(run[1] / "resumed")["test"]["default"] == results(run[1] / "whole")["test"]["default"]


class Mine(torchrank.LambdaRank):
    """A user's own ranker."""


def test_a_ranker_of_ones_own_is_resumed(tmp_path):
    options = [*SMALL, "model=lambdarank", "model._target_=tests.cli.test_train.Mine"]
    first = quick_train(*options, "trainer.max_epochs=3", "hydra.run.dir=out", cwd=tmp_path)
    last = "ckpt_path=out/checkpoints/last.ckpt"
    again = quick_train(*options, "trainer.max_epochs=4", "hydra.run.dir=more", last, cwd=tmp_path)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert results(tmp_path / "more")["ranker"] == "Mine"
    fewer = quick_train(*options, "trainer.max_epochs=1", "hydra.run.dir=fewer", last, cwd=tmp_path)
    assert fewer.returncode != 0 and "Trainer(max_epochs=1)" in fewer.stderr and "Traceback" not in fewer.stderr


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_results_of_one(run):
    options = [*SMALL, "model=listnet"]
    done = train(*options, "trainer=ddp_cpu", "hydra.run.dir=two", cwd=run[1], script=COMMAND)
    assert done.returncode == 0, done.stderr
    done = quick_train(*options, "hydra.run.dir=one", cwd=run[1])
    assert done.returncode == 0, done.stderr
    one, two = (results(run[1] / name)["test"]["default"]["measures"] for name in ("one", "two"))
    assert one == pytest.approx(two, abs=1e-9)


def test_a_sweep_is_selected_and_not_repeated(tmp_path):
    command = ["-m", *SMALL, "model=listnet,singlefeature", "data.seed=0", "hydra.sweep.dir=sweep"]
    first = quick_train(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    select = subprocess.run(
        [sys.executable, "-m", "torchrank.cli", "select", "sweep"], cwd=tmp_path, capture_output=True, text=True
    )
    assert select.returncode == 0, select.stderr
    assert "listnet" in select.stdout and "singlefeature" in select.stdout
    assert (tmp_path / "sweep/table.md").exists() and (tmp_path / "sweep/table.json").exists()
    again = quick_train(*command, cwd=tmp_path)
    assert again.stdout.count("Skipping: results") == 2


def test_a_folder_has_one_run_at_a_time(tmp_path):
    options = [*SMALL, "model=singlefeature", f"hydra.run.dir={tmp_path}/here"]
    (tmp_path / "here").mkdir()
    with alone_in(tmp_path / "here"):
        refused = quick_train(*options, cwd=tmp_path)
    assert refused.returncode != 0 and "Another run is writing to" in refused.stderr
    assert quick_train(*options, cwd=tmp_path).returncode == 0
    (tmp_path / "link").symlink_to("here")
    same = [f"callbacks.{name}.dirpath=${{hydra:runtime.output_dir}}" for name in ("best", "last")]
    linked = quick_train(*SMALL, "model=listnet", f"hydra.run.dir={tmp_path}/link/o", *same, cwd=tmp_path)
    assert linked.returncode == 0, linked.stderr
    again = [*options[:-1], "hydra.run.dir=more", "ckpt_path=here/checkpoints/last.ckpt"]
    with alone_in(tmp_path / "here/checkpoints"):  # which a run that is resumed writes
        refused = quick_train(*again, cwd=tmp_path)
    assert refused.returncode != 0 and f"Another run is writing to {tmp_path}/here/checkpoints." in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.l3=1"], "Key 'l3' is not in struct"),
        (["model=listnets"], "Could not find 'model/listnets'"),
        (["data=mq2008", "data.root=nowhere"], "Get the data set from"),
        (["trainer=gpu"], "trainer=gpu: "),
        (["-m", "trainer=ddp_cpu", "seed=0,1"], "would start the whole sweep"),
        (["conventions=[sklearn]"], "does not define"),
        (["train=false"], "name it with ckpt_path=FILE"),
        (["ckpt_path=none.ckpt"], "ckpt_path not found: none.ckpt"),
        (["model=mlr"], "MLR learns distances from query vectors"),
        (["model=mlr", "model.C=-1"], "C must be a number > 0"),
        (["model=svmmap", "data=points"], "use another transform, such as standard"),
        (["data=retrieval"], "Missing mandatory value: data.file"),
        (["monitor=val/foo"], "monitor=val/foo is not measured: choose one of val/ndcg@1"),
        (["monitor=foo"], "monitor=foo is not measured: choose one of val/ndcg@1"),
        (["~callbacks.evaluation"], "callbacks must have a torchrank.RankingEvaluation"),
        (["model=listnet", "+trainer.gradient_clip_val=1"], "gradient clipping is not supported"),
        (["+trainer.strategy=ddp_spawn"], "do not return their results: use trainer=ddp"),
        (["model.kappa=${foo}"], "Interpolation key 'foo' not found"),
        (["measures=[ndgc@10]"], "unknown measure 'ndgc@10'"),
        (["experiment=mq2008"], "experiment=mq2008 defines a sweep: run it with -m"),
        (["data=points", "measures=[knn_error@3]", "monitor=val/knn_error@3"], "set mode=min"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path):
    if arguments == ["trainer=gpu"] and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = quick_train(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("results.json"))
