"""Tables as lists: every kind of file gives the same set, and every mistake is told with file, row and column."""

import gzip
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import torchrank
from torchrank import RankingDataModule, read_letor, read_table
from torchrank.errors import DataError, DataWarning

DATA = Path(os.environ.get("TORCHRANK_DATA", "nowhere"))
KINDS = ("csv", "tsv", "csv.gz", "parquet", "arrow", "feather", "arrows")


def small() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "b": [0.5, -1.25, 1 / 3, 2.0],
            "query": ["x", "x", "007", "y"],
            "label": [2, 0, 1, 0],
            "a": [1, 2, 3, 4],
            "document": ["d1", "d2", "d3", "d4"],
        }
    )


def write(frame: pl.DataFrame, path: Path) -> Path:
    kind = path.name.partition(".")[2]
    if kind == "csv.gz":
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif kind in ("csv", "tsv"):
        frame.write_csv(path, separator="\t" if kind == "tsv" else ",")
    elif kind == "parquet":
        frame.write_parquet(path)
    elif kind == "arrows":
        frame.write_ipc_stream(path)
    else:
        frame.write_ipc(path)
    return path


def parts(lists: torchrank.RankingSet) -> tuple:
    documents = None if lists.document_ids is None else list(lists.document_ids)
    return lists.x.tolist(), lists.labels.tolist(), lists.offsets.tolist(), list(lists.query_ids), documents


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_lists(tmp_path, kind):
    lists = read_table(write(small(), tmp_path / f"a.{kind}"))
    third = float(np.float32(1 / 3))
    assert parts(lists) == (
        [[0.5, 1.0], [-1.25, 2.0], [third, 3.0], [2.0, 4.0]],
        [2.0, 0.0, 1.0, 0.0],
        [0, 2, 3, 4],
        ["x", "007", "y"],
        ["d1", "d2", "d3", "d4"],
    )
    assert lists.feature_names == ("b", "a") and lists.name == f"a.{kind}"


@pytest.mark.skipif(not (DATA / "MQ2008").is_dir(), reason="needs MQ2008")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_real_lists_equal_those_of_the_letor_reader(tmp_path, kind):
    truth = read_letor(DATA / "MQ2008" / "Fold1" / "vali.txt")
    frame = pl.DataFrame(truth.x.numpy(), schema=[f"f{i}" for i in range(truth.num_features)]).with_columns(
        grade=pl.Series(truth.labels.numpy()),
        qid=pl.Series(np.repeat(list(truth.query_ids), truth.lengths)),
        url=pl.Series(list(truth.document_ids)),
    )
    lists = read_table(write(frame, tmp_path / f"a.{kind}"), label="grade", query="qid", document="url")
    assert parts(lists) == parts(truth)


def test_rows_of_a_query_are_gathered_in_their_order(tmp_path):
    frame = small()[[0, 2, 1, 3]]
    with pytest.warns(DataWarning, match=r"the rows of 1 of 3 queries are not contiguous; they were joined"):
        lists = read_table(write(frame, tmp_path / "a.csv"))
    assert list(lists.document_ids) == ["d1", "d2", "d3", "d4"] and lists.offsets.tolist() == [0, 2, 3, 4]


def test_batches_change_nothing(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "query": np.sort(random.integers(20, size=200)),
            "label": random.integers(3, size=200),
            "f": random.random(200),
        }
    )
    whole = parts(read_table(write(frame, tmp_path / "a.csv")))
    for kind in ("csv", "parquet", "arrow"):
        path = write(frame, tmp_path / f"b.{kind}")
        monkeypatch.setattr("torchrank.data.sources.frames.BATCH", 28)
        assert parts(read_table(path)) == whole
        monkeypatch.undo()


@pytest.mark.parametrize("ids", [[3, 3, 10], [3.0, 3.0, 10.0], ["3", "3", "10"]])
def test_ids_may_be_text_or_integers(tmp_path, ids):
    frame = pl.DataFrame({"query": ids, "label": [1.0, 0.0, 2.5], "f": [1, 2, 3]})
    lists = read_table(write(frame, tmp_path / "a.parquet"))
    assert list(lists.query_ids) == ["3", "10"] and lists.labels.tolist() == [1.0, 0.0, 2.5]


def test_columns_of_text_are_left_out_with_a_warning_and_truth_values_are_numbers(tmp_path):
    frame = small().with_columns(url=pl.lit("http://a"), new=pl.Series([True, False, True, True]), comment=pl.lit("c"))
    with pytest.warns(DataWarning, match=r"1 columns have no numbers and are no features: 'url'"):
        lists = read_table(write(frame, tmp_path / "a.parquet"))
    assert lists.feature_names == ("b", "a", "new") and lists.x[:, 2].tolist() == [1, 0, 1, 1]


def test_features_are_those_that_were_named_in_that_order(tmp_path, recwarn):
    lists = read_table(write(small().with_columns(url=pl.lit("u")), tmp_path / "a.csv"), features=["a", "b"])
    assert lists.feature_names == ("a", "b") and lists.x[0].tolist() == [1.0, 0.5] and not recwarn


CSV = "query,label,f,g\n1,0,0.5,1\n1,2,{},2\n2,1,3,4\n"


@pytest.mark.parametrize(
    "text, options, message",
    [
        (CSV.format("abc"), {}, r"row 2, column 'f': 'abc' is not a finite number"),
        (CSV.format("abc"), {"missing": 0}, r"row 2, column 'f': 'abc' is not a finite number"),
        (CSV.format("inf"), {}, r"row 2, column 'f': 'inf' is not a finite number"),
        (CSV.format(""), {}, r"row 2, column 'f': the value is missing.*data\.missing=0"),
        (CSV.format("nan"), {}, r"row 2, column 'f': the value is missing"),
        (CSV.format("1e39"), {}, r"row 2, column 'f': 1e\+39 does not fit float32.*data\.sentinel=0"),
        (CSV.format("1,9"), {}, r"line 3 has 5 cells, but the header has 4"),
        (CSV, {"label": "grade"}, r"no column 'grade' \(data\.label\); the columns are 'query', 'label', 'f', 'g'"),
        (CSV.format("1"), {"query": "qid"}, r"no column 'qid' \(data\.query\)"),
        (CSV.format("1"), {"document": "url"}, r"no column 'url' \(data\.document\)"),
        (CSV.format("1"), {"features": ["g", "h"]}, r"no column 'h' \(data\.features\)"),
        (CSV.format("1"), {"features": ["g", "label"]}, r"the column 'label' is named twice"),
        (CSV.format("1"), {"features": []}, r"no column of features"),
        ("query,label,f,f\n1,1,1,1\n", {}, r"two columns are called 'f'"),
        (",query,label,f\n0,1,1,1\n", {}, r"column 1 of the header has no name"),
        ("query,label,f\rg\n1,1,x\n", {}, r"a carriage return in the header"),  # as files of old Macs have
        ("query,label,f\n", {}, r"the table has no rows"),
        ("", {}, r"the file is empty, expected a header"),
        ("query,label,f\n1,good,1\n", {}, r"row 1, column 'label': 'good' is not a finite number"),
        ("query,label,f\n1,1,1\n1,,1\n", {}, r"row 2, column 'label': the value is missing"),
        ("query,label,f\n1,1,1\n,1,1\n", {}, r"row 2, column 'query': the query id is missing"),
        ("query,label,f\n1,1,1\n1,-1,1\n", {}, r"row 2, column 'label': label -1 means that the document is unjudged"),
        ("query,label,f\n1,-1,1\n", {"unjudged": "drop"}, r"all 1 rows have label -1"),
        ("query,label,url\n1,1,x\n", {}, r"no column of features"),
        ("1 qid:1 1:3\n0 qid:1 1:2\n", {}, r"rows of a LETOR file, not of a table: use data=files"),
    ],
)
def test_mistakes_are_told_with_row_and_column(tmp_path, text, options, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=rf"a\.csv.*{message}") as caught:
        read_table(tmp_path / "a.csv", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_binary_table_that_is_cut_off_anywhere_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    (small().write_parquet if kind == "parquet" else small().write_ipc)(path)
    whole = path.read_bytes()
    for length in range(8, len(whole), len(whole) // 40):
        path.write_bytes(whole[:length] + b"\0" * 8)
        with pytest.raises(DataError, match=rf"a\.{kind} cannot be read as {kind}: ") as caught:
            read_table(path)
        assert "\n" not in str(caught.value)


def test_wrong_types_and_damaged_files_are_refused(tmp_path):
    lists = small().with_columns(label=pl.Series([[1], [2], [3], [4]]))
    with pytest.raises(DataError, match=r"column 'label' is of type List\(Int64\), expected numbers"):
        read_table(write(lists, tmp_path / "a.parquet"))
    with pytest.raises(DataError, match=r"row 3, column 'b': the value is missing"):
        read_table(write(small().with_columns(b=pl.Series([1, 2, None, 4])), tmp_path / "b.parquet"))
    whole = write(small(), tmp_path / "c.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"d\.parquet cannot be read as parquet"):
        read_table(tmp_path / "d.parquet")
    (tmp_path / "e.csv").write_bytes(b"\x89\xff\xfe,\n")
    with pytest.raises(DataError, match=r"e\.csv: not a csv file of UTF-8 text"):
        read_table(tmp_path / "e.csv")
    with pytest.raises(FileNotFoundError, match=r"not found: none\.csv"):
        read_table("none.csv")


def test_what_was_changed_is_counted(tmp_path):
    (tmp_path / "a.csv").write_text("query,label,f\n1,1,\n\n1,-1,1e39\n2,-1,nan\n")
    with pytest.warns(DataWarning) as caught:
        lists = read_table(tmp_path / "a.csv", missing=7, sentinel="clip", unjudged="drop")
    told = " ".join(str(warning.message) for warning in caught)
    assert "2 of 3 rows have label -1 and were dropped (unjudged=drop); 1 queries lost all their rows" in told
    assert "2 NULL values were replaced by 7" in told and "1 values beyond float32 were clipped" in told
    assert lists.x.tolist() == [[7.0]] and list(lists.query_ids) == ["1"]
    with pytest.warns(DataWarning, match="got label 0"):
        assert read_table(tmp_path / "a.csv", missing=7, sentinel=0, unjudged=0).x.tolist() == [[7], [0], [7]]


def test_the_data_module_takes_columns_by_name_and_caches(tmp_path):
    frame = pl.DataFrame({"query": np.repeat(range(10), 2), "label": [0, 1] * 10, "f": range(20), "g": range(20, 40)})
    write(frame, tmp_path / "train.parquet")
    write(frame.select("g", "label", "query", "f").with_columns(query=pl.col("query") + 50), tmp_path / "test.csv")
    for _ in range(2):
        data = RankingDataModule("table", root=tmp_path, train="train.parquet", test="test.csv")
        with pytest.warns(DataWarning, match="Holding out 2 of 10 training queries for validation"):
            data.setup()
        assert data.sets["test"].x[0].tolist() == [0.0, 20.0] and len(data.sets["val"]) == 2
        assert {lists.feature_names for lists in data.sets.values()} == {("f", "g")}
    assert (tmp_path / "test.csv.torchrank").is_dir() and data.title.startswith("table/test_the_data_module")
    write(frame.drop("g"), tmp_path / "test.csv")
    with pytest.raises(DataError, match=r"test\.csv: no column 'g' \(data\.features\)"):
        RankingDataModule("table", root=tmp_path, train="train.parquet", test="test.csv").setup()


def test_spaces_around_the_names_of_a_header_do_not_count(tmp_path):
    (tmp_path / "a.csv").write_text("query, label,  f \n1,1,0.5\n")
    assert read_table(tmp_path / "a.csv").feature_names == ("f",)


def test_an_empty_query_id_is_refused(tmp_path):
    pl.DataFrame({"query": ["a", ""], "label": [1, 0], "f": [1.0, 2.0]}).write_ipc(tmp_path / "a.arrow")
    with pytest.raises(DataError, match=r"a\.arrow, row 2, column 'query': the query id is missing"):
        read_table(tmp_path / "a.arrow")
