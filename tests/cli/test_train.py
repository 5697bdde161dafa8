"""`python train.py` as a user starts it: what it prints, writes, resumes and refuses."""

import contextlib
import importlib.util
import multiprocessing
import re
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
from torchrank.train import CONF


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
    assert found["certificate"] is None and list(found["findings"]) == ["transform"] and found["steps"] == 4


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
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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
    assert one.findings == other.findings
    torch.testing.assert_close(dict(one.named_parameters()), dict(other.named_parameters()), rtol=0, atol=0)
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


def test_the_results_of_another_run_are_not_replaced(run):
    before = (run[1] / "out/results.json").read_bytes()
    done = quick_train(*SMALL, "model=random", "hydra.run.dir=out", cwd=run[1])
    told = "holds the results of a run with other options: name another folder with hydra.run.dir, or remove this one"
    assert done.returncode == 2 and done.stderr.endswith(f"{told}\n") and len(done.stderr.splitlines()) == 1
    assert (run[1] / "out/results.json").read_bytes() == before


def test_an_interrupt_before_the_fit_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("torchrank.run.run_once", interrupted)
    done = quick_train(*SMALL, "model=random", "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 130 and done.stderr == "torchrank train: interrupted\n"
    assert not (tmp_path / "out").exists()


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.kapa=1"], "unknown option model.kapa: did you mean model.kappa or model.alpha?"),
        (["modle=listnet"], "unknown option modle: did you mean mode or model?"),
        (["model=listnets"], "unknown model=listnets: did you mean listnet?"),
        (["model=xyz"], "unknown model=xyz: choose one of adapter, adarank, attention, dcn, dk, "),
        (["data=mq2009"], "unknown data=mq2009: did you mean mq2008 or mq2007?"),
        (["debug=fats"], "unknown debug=fats: did you mean fast?"),
        (["logger=[csv,tensorbord]"], "unknown logger=tensorbord: did you mean tensorboard?"),
        (["-m", "model=listnets,random"], "unknown model=listnets: did you mean listnet?"),
        (["model=listnet,random"], "add -m for a sweep over these values"),
        (["listnet"], "cannot read 'listnet': write OPTION=VALUE"),
        (["+model.foo=1"], "unexpected keyword argument 'foo'"),
        (["trainer.max_epochs=abc"], "trainer.max_epochs must be an integer"),
        (["measures=ndcg@10"], "measures must be a list, such as measures=[ndcg@10]"),
        (["data=mq2008", "data.root=nowhere"], "Get the data set from"),
        (["trainer=gpu"], "On a machine without a GPU use trainer=cpu."),
        (["-m", "trainer=ddp_cpu", "seed=0,1"], "would start the whole sweep"),
        (["conventions=[sklearn]"], "does not define"),
        (["train=false"], "name it with ckpt_path=FILE"),
        (["ckpt_path=none.ckpt"], "ckpt_path not found: none.ckpt"),
        (["model=mlr"], "MLR learns distances from query vectors"),
        (["model=mlr", "model.C=-1"], "C must be a number > 0"),
        (["model=svmmap", "data=points", "model.transform=query_minmax"], "use another transform, such as standard"),
        (["data=retrieval"], "data.file is missing: give data.file=VALUE\n"),
        (["--model", "lgmml"], "unknown flag --model: options are written without dashes, as NAME=VALUE"),
        (["data=files", "data.train=a.txt"], "not found: a.txt (data.train=a.txt, relative to the current folder)\n"),
        (["monitor=val/foo"], "monitor=val/foo is not measured: choose one of val/ndcg@1"),
        (["monitor=foo"], "monitor=foo is not measured: choose one of val/ndcg@1"),
        (["~callbacks.evaluation"], "callbacks must have a torchrank.RankingEvaluation"),
        (["model=listnet", "+trainer.gradient_clip_val=1"], "gradient clipping is not supported"),
        (["+trainer.strategy=ddp_spawn"], "do not return their results: use trainer=ddp"),
        (["model.kappa=${foo}"], "Interpolation key 'foo' not found\n"),
        (["measures=[ndgc@10]"], "Did you mean ndcg@10?\n"),
        (["experiment=mq2008"], "experiment=mq2008 defines a sweep: run it with -m"),
        (["data=points", "measures=[knn_error@3]", "monitor=val/knn_error@3"], "set mode=min"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path):
    if arguments == ["trainer=gpu"] and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = quick_train(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr
    assert all(line.startswith("torchrank train: error: ") for line in done.stderr.splitlines())
    assert {path.name for path in tmp_path.iterdir()} == {"stdout", "stderr"}  # a failed start leaves nothing behind


def test_a_mistake_is_shown_in_full_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for arguments in (["model=listnets"], ["ckpt_path=none.ckpt"]):
        done = quick_train(*arguments, cwd=tmp_path)
        assert done.returncode == 1 and "Traceback" in done.stderr


def test_a_folder_with_other_files_stays(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").touch()
    done = quick_train("ckpt_path=none.ckpt", "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 2 and (tmp_path / "out/mine.txt").exists()
    done = quick_train("ckpt_path=none.ckpt", "hydra.run.dir=.", cwd=tmp_path)
    assert done.returncode == 2 and tmp_path.exists()


def broken(*_, **__):
    raise RuntimeError("a bug")


def test_a_crash_keeps_its_log(tmp_path):
    done = quick_train("model._target_=tests.cli.test_train.Crashing", *SMALL, "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("RuntimeError: a bug") == 1
    assert "RuntimeError: a bug" in (tmp_path / "out/train.log").read_text()


class Crashing(torchrank.LGMML):
    """A ranker with a bug."""

    round = broken


def test_the_log_holds_what_the_run_said(run):
    log = (run[1] / "out/train.log").read_text()
    assert "lambdarank on synthetic: 24 train lists, 8 val lists, 8 test lists, 20 features" in log
    assert [f"epoch {number}: " in log for number in range(1, 6)] == [True] * 4 + [False]
    assert "val/ndcg@10 0." in log and all(line in log for line in run[0].stdout.splitlines()[-2:])


def test_warnings_are_in_the_log_and_on_stderr_without_code(tmp_path):
    done = quick_train(*SMALL, "model=random", "data.clean=train", "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 0 and re.fullmatch(r"DataWarning: Removed from train: .*\n", done.stderr)
    assert f"[WARNING] {done.stderr}" in (tmp_path / "out/train.log").read_text()


def test_a_redirected_log_has_no_progress_bars(run):
    assert "\r" not in run[0].stderr + run[0].stdout and "it/s" not in run[0].stderr


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path):
    text = (CONF / "train.yaml").read_text()
    (name,) = set(re.findall(r"\$\{now:.*\}", text))
    assert text.count(name) == 2 and name.endswith("%S-%f}")  # of runs and of sweeps
    places = [tmp_path / number for number in "12"]
    arguments = (*SMALL, "model=random", f"hydra.run.dir={tmp_path}/runs/{name}")
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=quick_train, args=arguments, kwargs={"cwd": place}) for place in places]
    for place, process in zip(places, both, strict=True):
        place.mkdir()
        process.start()
    for process in both:
        process.join()
    assert len(list(tmp_path.glob("runs/*/results.json"))) == 2


def test_a_failing_run_does_not_lose_the_others_of_a_sweep(tmp_path):
    sweep = ["-m", *SMALL, "model=mlr,random", "hydra.sweep.dir=sweep"]
    done = quick_train(*sweep, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    first, last = done.stderr.splitlines()
    assert "MLR learns distances from query vectors" in first and "1 of 2 runs failed, see above" in last
    assert [path.parent.name.endswith("model=random") for path in tmp_path.rglob("results.json")] == [True]
    (failed,) = (tmp_path / "sweep").glob("*model=mlr")
    assert "MLR learns distances from query vectors" in (failed / "train.log").read_text()
    again = quick_train(*sweep, cwd=tmp_path)
    assert again.returncode == 2 and again.stdout.count("Skipping: results") == 1


@pytest.mark.parametrize("arguments", [["model=lgmml"], ["model=mlr", "data=points"], ["model=gbdt"]], ids=str)
def test_a_try_takes_seconds(arguments, tmp_path):
    pytest.importorskip({"model=mlr": "sklearn", "model=gbdt": "lightgbm"}.get(arguments[0], "torch"))
    done = quick_train("debug=fast", *arguments, cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    (found,) = tmp_path.glob("runs/debug/*/*/*")
    assert max(results(found)["num_lists"].values()) <= 20 and results(found)["steps"] <= 2
    assert "its measures mean nothing" in done.stdout


def test_several_loggers(tmp_path):
    pytest.importorskip("tensorboard")
    done = quick_train(*SMALL, "model=random", "logger=[csv,tensorboard]", "hydra.run.dir=out", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "out/log").is_dir() and (tmp_path / "out/tensorboard").is_dir()


def test_a_missing_logger_is_named_with_its_extra(tmp_path):
    if importlib.util.find_spec("tensorboard") or importlib.util.find_spec("tensorboardX"):
        pytest.skip("tensorboard is installed")
    done = quick_train(*SMALL, "logger=[csv,tensorboard]", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("logger=tensorboard needs tensorboard: pip install 'torchrank-ltr[loggers]'\n")


def test_help_reads_like_a_page(tmp_path):
    done = quick_train("--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: torchrank train") and "logger: csv" in done.stdout
    assert len(done.stdout.splitlines()) < 45
