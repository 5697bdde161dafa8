"""`torchrank folds`: every query is tested once, parts rotate as LETOR's do, and the folds are read by data=folds."""

import json
from pathlib import Path

import pytest

from torchrank import RankingDataModule, read_letor
from torchrank.cli import main

LINES = [f"{i % 3} qid:q{i // 3} 1:{i / 7!r} 4:{i} # doc {i}\n" for i in range(36)]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "all.txt"
    path.write_text("".join(LINES))
    return path


def queries(path: Path) -> list[str]:
    return list(read_letor(path).query_ids)


def by_query(path: Path) -> dict[str, tuple]:
    lists, found = read_letor(path), {}
    for place, query in enumerate(lists.query_ids):
        rows = slice(*lists.offsets[place : place + 2].tolist())
        found[query] = lists.x[rows].tolist(), lists.labels[rows].tolist(), lists.document_ids[rows]
    return found


def test_every_query_is_in_one_test_part_and_parts_rotate(file, tmp_path, capsys):
    out = tmp_path / "folds"
    assert main(["folds", str(file), "--out", str(out), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["folds"]
    folds = [
        {split: queries(out / f"Fold{k}" / f"{split}.txt") for split in ("train", "vali", "test")} for k in range(1, 6)
    ]
    everything = queries(file)
    assert sorted(query for fold in folds for query in fold["test"]) == sorted(everything)
    for fold, following, count in zip(folds, [*folds[1:], folds[0]], counts, strict=True):
        assert sorted(fold["train"] + fold["vali"] + fold["test"]) == sorted(everything)
        assert following["vali"] == fold["test"]  # as in MQ2008: test of fold k is validation of fold k + 1
        assert {split: len(part) for split, part in fold.items()} == count
    assert folds[0]["train"] == [*folds[1]["test"], *folds[2]["test"], *folds[3]["test"]]  # S1, S2, S3 in this order


def test_rows_are_those_of_the_file(file, tmp_path):
    assert main(["folds", str(file), "--folds", "3", "--out", str(tmp_path / "folds")]) == 0
    parts = [by_query(tmp_path / "folds" / f"Fold{fold}" / "test.txt") for fold in (1, 2, 3)]
    assert parts[0] | parts[1] | parts[2] == by_query(file)


def test_the_seed_draws_the_parts(file, tmp_path):
    texts = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert main(["folds", str(file), "--out", str(tmp_path / name), "--seed", seed]) == 0
        texts.append([path.read_bytes() for path in sorted((tmp_path / name).rglob("*.txt"))])
    assert len(texts[0]) == 15 and texts[0] == texts[1] != texts[2]


def test_the_folds_are_a_data_set(file, tmp_path, recwarn):
    table = tmp_path / "all.parquet"
    assert main(["convert", str(file), str(table)]) == 0
    assert main(["folds", str(table), "--folds", "4", "--out", str(tmp_path / "shop")]) == 0
    for fold in (1, 4):
        data = RankingDataModule("folds", root=tmp_path / "shop", fold=fold)
        data.setup()
        assert [len(lists) for lists in data.sets.values()] == [6, 3, 3] and data.title == "folds/shop"
    with pytest.raises(ValueError, match=r"data\.fold of folds must be one of 1\.\.4, got 5"):
        RankingDataModule("folds", root=tmp_path / "shop", fold=5).setup()
    with pytest.raises(FileNotFoundError, match=r"no folder Fold1 in data\.root=.*`torchrank folds FILE"):
        RankingDataModule("folds", root=tmp_path).setup()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--folds", "2"], "folds must be >= 3, got 2"),
        (["--folds", "13"], "12 queries are too few for 13 folds"),
        (["--out", "{folder}"], "exists and is not an empty folder"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(file, tmp_path, capsys, options, message):
    given = [each.format(folder=tmp_path) for each in options]
    assert main(["folds", str(file), "--out", str(tmp_path / "new"), *given]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["all.txt"]
