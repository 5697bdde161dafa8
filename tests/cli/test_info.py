"""`torchrank info`: its counts equal those of plain numpy, for every format; checkpoints and run folders in brief."""

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import torchrank
from tests.report.sweep import write_run
from torchrank import RankingSet, read_letor
from torchrank.cli import main
from torchrank.cli.info import EXTRAS

DATA = Path(os.environ.get("TORCHRANK_DATA", "nowhere"))
TEXT = """\
2 qid:a 1:0.5 3:-7
0 qid:a 1:NULL 3:1e308
-1 qid:b 1:2
0 qid:b
0 qid:c 1:1 4:3
1 qid:a 1:9
"""


def info(capsys, *arguments: str) -> dict:
    assert main(["info", *arguments, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_a_small_file_by_hand(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(TEXT)
    found = info(capsys, str(tmp_path / "a.txt"))
    assert found == {
        "path": str(tmp_path / "a.txt"),
        "kind": "data (letor)",
        "queries": 3,
        "documents": 6,
        "features": 4,
        "labels": {"-1": 1, "0": 3, "1": 1, "2": 1},
        "unjudged": 1,
        "lengths": {"min": 1, "median": 2.0, "mean": 2.0, "max": 3},
        "queries_of_one_document": 1,
        "queries_without_relevant": 2,
        "zeros": 16 / 24,
        "missing": 1,
        "constant": ["f2"],
        "ranges": {"f1": [0, 9], "f2": [0, 0], "f3": [-7, 1e308], "f4": [0, 3]},
    }
    assert main(["info", str(tmp_path / "a.txt")]) == 0
    text = capsys.readouterr().out
    assert "queries without relevant  2\n" in text and "zeros                     66.7%\n" in text


@pytest.mark.skipif(not (DATA / "MQ2008").is_dir(), reason="needs MQ2008")
@pytest.mark.parametrize("out", ["a.txt", "a.parquet", "a.npz", "a.torchrank"])
def test_real_lists_equal_plain_numpy(tmp_path, capsys, out):
    source = DATA / "MQ2008" / "Fold1" / "vali.txt"
    assert main(["convert", str(source), str(tmp_path / out)]) == 0
    capsys.readouterr()
    found, truth = info(capsys, str(tmp_path / out)), read_letor(source)
    x, labels = truth.x.numpy().astype(np.float64), truth.labels.numpy()
    best = np.maximum.reduceat(labels, truth.offsets[:-1].numpy())
    assert found["labels"] == {str(grade): int((labels == grade).sum()) for grade in range(3)}
    assert found["queries_without_relevant"] == (best < 1).sum() and found["queries"] == len(truth)
    assert found["zeros"] == pytest.approx((x == 0).mean()) and found["missing"] == 0
    np.testing.assert_allclose(list(found["ranges"].values()), np.stack((x.min(0), x.max(0)), 1), rtol=1e-7)
    assert found["constant"] == [f"f{place + 1}" for place in np.flatnonzero(x.min(0) == x.max(0))]
    assert found["lengths"]["max"] == truth.lengths.max() and found["lengths"]["mean"] == pytest.approx(
        truth.lengths.mean()
    )


def test_a_table_with_missing_cells_and_real_labels(tmp_path, capsys):
    rows = "".join(f"{i / 7},q{i},{'' if i % 5 else i},1\n" for i in range(40))
    (tmp_path / "a.csv").write_text("grade,qid,f,g\n" + rows)
    found = info(capsys, str(tmp_path / "a.csv"), "--label", "grade", "--query", "qid")
    assert found["missing"] == 32 and found["ranges"] == {"f": [0, 35], "g": [1, 1]} and found["constant"] == ["g"]
    assert found["labels"] == {"min": 0, "max": 39 / 7, "different": 40}


def test_vectors(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torchrank.cli.info.BLOCK", 2)
    vectors = np.array([[3, 4], [0, 1], [0, 0]], dtype=np.float16)
    np.save(tmp_path / "a.npy", vectors)
    found = info(capsys, str(tmp_path / "a.npy"))
    assert found.pop("norms") == {"min": 0.0, "mean": 2.0, "max": 5.0} and found.pop("path").endswith("a.npy")
    assert found == {"kind": "vectors", "vectors": 3, "numbers": 2, "type": "float16"}


def test_a_folder_in_the_layout_of_beir(tmp_path, capsys):
    for name in ("corpus", "queries"):
        (tmp_path / f"{name}.jsonl").touch()
    place = {"path": str(tmp_path), "kind": "embeddings"}
    use = f"torchrank embed {tmp_path} --model MODEL"
    assert info(capsys, str(tmp_path)) == place | {"corpus": None, "queries": None, "use": use}
    for rows, name in ((3, "corpus"), (2, "queries")):
        np.save(tmp_path / f"{name}.npy", np.ones((rows, 4), dtype=np.float32))
    use = f"torchrank train model=adapter data=embeddings data.root={tmp_path}"
    sides = {"corpus": "3 vectors of 4 numbers", "queries": "2 vectors of 4 numbers"}
    assert info(capsys, str(tmp_path)) == place | sides | {"use": use}


def test_a_checkpoint(tmp_path, capsys):
    from pytorch_lightning import Trainer

    random = torch.Generator().manual_seed(0)
    lists = RankingSet(torch.rand(20, 3, generator=random), torch.arange(20.0) % 2, torch.arange(0, 21, 4))
    ranker = torchrank.SingleFeature(3)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, use_distributed_sampler=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(ranker, datamodule=torchrank.RankingDataModule.from_sets(train=lists, val=lists))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    found = info(capsys, str(tmp_path / "a.ckpt"))
    assert (found["kind"], found["ranker"], found["features"]) == ("checkpoint", "SingleFeature", 3)
    assert found["options"].keys() == dict(ranker.hparams).keys() - {"num_features"} and "certificate" in found
    (tmp_path / "b.ckpt").write_bytes(b"nothing")
    assert main(["info", str(tmp_path / "b.ckpt")]) == 2
    assert "b.ckpt" in capsys.readouterr().err


def test_run_folders(tmp_path, capsys):
    for fold, name in enumerate(("a", "b"), 1):
        write_run(tmp_path / name, "listnet", fold=fold, value=0.5, queries={"default/ndcg@10": [1.0, 0.5]})
    found = info(capsys, str(tmp_path / "a"))
    assert found["kind"] == "run" and found["method"] == "listnet" and 0.5 in found["selected_by"].values()
    found = info(capsys, str(tmp_path))
    assert found["kind"] == "runs" and set(found["runs"]) == {"a", "b"} and found["use"].startswith("torchrank select")
    (tmp_path / "empty").mkdir()
    assert main(["info", str(tmp_path / "empty")]) == 2 == main(["info", str(tmp_path / "none")])
    assert capsys.readouterr().err.count("\n") == 2


def test_the_installation(capsys):
    found = info(capsys)
    assert found["torchrank"] == torchrank.__version__ and found["packages"]["torch"] == torch.__version__
    project = tomllib.loads((Path(torchrank.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for extra, packages in EXTRAS.items():
        wanted = " ".join(project["optional-dependencies"][extra])
        assert all(package in wanted for package in packages) and extra in found["extras"]
