"""Folders of vectors and judgements: what is read, and what is refused or told."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from torchrank.data.sources.embeddings import load_embeddings
from torchrank.errors import DataError, DataWarning

IDS = {"corpus": ["d1", "d2", "d10", "é"], "queries": ["1", "2", "3"]}
JUDGED = "query-id\tcorpus-id\tscore\n1\td2\t2\n1\td10\t1\n2\té\t1\n3\td1\t3\n"


def vectors(count, dtype=np.float32):
    return np.arange(1, count * 2 + 1).reshape(count, 2).astype(dtype)


@pytest.fixture
def folder(tmp_path):
    for name, ids in IDS.items():
        np.save(tmp_path / f"{name}.npy", vectors(len(ids)))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"_id": each, "text": "t"}) + "\n" for each in ids))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "all.tsv").write_text(JUDGED)
    return tmp_path


def split_files(folder, **texts):
    (folder / "qrels" / "all.tsv").unlink()
    for name, text in texts.items():
        (folder / "qrels" / f"{name}.tsv").write_text(text)


def test_the_parts_are_the_files(folder):
    split_files(folder, train="1\td2\t2\n1\td10\t1\n", dev="2\té\t2\n", test="3\td1\t3\n")
    sets = load_embeddings(folder)
    assert {name: lists.query_ids for name, lists in sets.items()} == {"train": ["1"], "val": ["2"], "test": ["3"]}
    batch = sets["train"][:]
    assert batch.labels.tolist() == [0, 2, 1, 0] and batch.queries.tolist() == [[1, 2]]
    assert torch.equal(torch.as_tensor(batch.x), torch.from_numpy(vectors(4)))
    assert load_embeddings(folder, threshold=2)["train"][:].labels.tolist() == [0, 1, 0, 0]


def test_one_file_is_divided_as_numpy_draws(folder):
    order = np.random.default_rng((7, 2)).permutation(3)
    sets = load_embeddings(folder, seed=7, fold=2, test_fraction=0.34, val_fraction=0.5)
    found = [sets[name].query_ids for name in ("test", "val", "train")]
    assert found == [[IDS["queries"][place]] for place in order]


def test_validation_queries_are_drawn_from_training(folder):
    split_files(folder, train="1\td2\t2\n2\té\t1\n", test="3\td1\t3\n")
    sets = load_embeddings(folder, val_fraction=0.5)
    assert sorted(sets["train"].query_ids + sets["val"].query_ids) == ["1", "2"] and sets["test"].query_ids == ["3"]
    assert "val" not in load_embeddings(folder, val_fraction=0.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["npy", "safetensors"])
def test_vectors_of_every_kind(folder, dtype, kind):
    for name, ids in IDS.items():
        (folder / f"{name}.npy").unlink()
        array = vectors(len(ids), dtype)
        np.save(folder / f"{name}.npy", array) if kind == "npy" else save_file(
            {"x": array}, folder / f"{name}.safetensors"
        )
    batch = load_embeddings(folder, test_fraction=0, val_fraction=0)["train"][:]
    np.testing.assert_array_equal(np.asarray(batch.x, dtype=np.float64), vectors(4))


def test_ids_files_instead_of_texts_and_beside_them(folder):
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.ids").write_text("\n".join(IDS["corpus"]) + "\n", encoding="utf-8")
    (folder / "queries.ids").write_text(
        "3\n1\n2\n"
    )  # another order than that of the texts: it tells whose vectors are where
    lists = load_embeddings(folder, test_fraction=0, val_fraction=0)["train"]
    assert dict(zip(lists.query_ids, lists.queries.tolist(), strict=True)) == {"3": [1, 2], "1": [3, 4], "2": [5, 6]}
    (folder / "queries.ids").write_text("3\n1\n4\n")
    with pytest.raises(DataError, match=r"queries.ids: its ids are not those of queries.jsonl: '2' is in one"):
        load_embeddings(folder)


def test_trec_judgements(folder):
    (folder / "judged.txt").write_text("1 0 d2 2\n1 0 d10 0\n2 0 é 1\n3 0 d1 3\n", encoding="utf-8")
    lists = load_embeddings(folder, qrels="judged.txt", test_fraction=0, val_fraction=0)["train"]
    assert lists[:1].labels.tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("after", ["", "\n\n"])
@pytest.mark.parametrize("form", ["{}\t{}\t{}", "{}\t0\t{}\t{}", "{}  Q0 {}   {}"])
@pytest.mark.parametrize("header", ["", "query-id\tcorpus-id\tscore\n"])
def test_lines_of_every_kind(folder, mark, end, after, form, header):
    """With zeros in front of ids that look like numbers, line ends of Windows, and blank lines at the end."""
    ids = {"corpus": ["01", "1", "001", "é"], "queries": ["1", "01", "1.0"]}
    judged = [("1", "001", 2), ("01", "1", 1), ("1.0", "é", 1)]

    def put(name, text):
        (folder / name).write_bytes((mark + text + after).replace("\n", end).encode())

    put("qrels/all.tsv", header + "\n".join(form.format(*each) for each in judged))
    for name, each in ids.items():
        (folder / f"{name}.jsonl").unlink()
        put(f"{name}.ids", "\n".join(each))
    lists = load_embeddings(folder, test_fraction=0, val_fraction=0)["train"]
    batch = lists[:]
    assert lists.query_ids == ids["queries"] and lists.document_ids == ids["corpus"]
    assert batch.labels.view(3, 4).tolist() == [[0, 0, 2, 0], [0, 1, 0, 0], [0, 0, 0, 1]]


def test_a_header_after_blank_lines(folder):
    (folder / "qrels" / "all.tsv").write_text("\n\nquery_id\tcorpus_id\tscore\n1\td2\t2\n")
    assert load_embeddings(folder, test_fraction=0, val_fraction=0)["train"].query_ids == ["1"]


def queries_among_the_documents(folder):
    """Query 1 is document 1, query 2 has the id of another text, query 3 of none."""
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.ids").write_text("2\nd2\n1\nd4\n")
    documents, queries = vectors(4), vectors(3)
    queries[0] = documents[2]
    np.save(folder / "queries.npy", queries)
    (folder / "qrels" / "all.tsv").write_text("1\td2\t1\n1\t1\t2\n2\td4\t1\n3\t1\t1\n")


def test_queries_that_are_documents_are_told(folder):
    queries_among_the_documents(folder)
    with pytest.warns(DataWarning, match="1 queries have the id and nearly the vector of a document, the first '1'"):
        lists = load_embeddings(folder, test_fraction=0, val_fraction=0)["train"]
    assert lists.lengths.tolist() == [4, 4, 4] and lists[:1].labels.tolist() == [0, 1, 2, 0]


def test_queries_that_are_documents_do_not_rank_themselves(folder):
    queries_among_the_documents(folder)
    with pytest.warns(
        DataWarning, match="1 judgements of queries for themselves do not count, the first in line 2: '1'"
    ):
        lists = load_embeddings(folder, test_fraction=0, val_fraction=0, drop_same_id=True)["train"]
    rows = [lists[place].index.tolist() for place in range(3)]
    assert rows == [[0, 1, 3], [1, 2, 3], [0, 1, 2, 3]]
    assert [lists[place].labels.tolist() for place in range(3)] == [[0, 1, 0], [0, 0, 1], [0, 0, 1, 0]]


def test_queries_in_two_parts_are_counted(folder):
    split_files(folder, train="1\td2\t2\n2\té\t1\n", dev="3\td1\t1\n", test="2\td1\t3\n1\td1\t3\n")
    with pytest.warns(DataWarning, match=r"qrels: 2 queries are in train.tsv and in test.tsv: .* too good"):
        load_embeddings(folder)


def test_files_of_judgements_that_are_not_read_are_named(folder):
    split_files(folder, train="1\td2\t2\n", test="2\té\t1\n", more="3\td1\t1\n")
    with pytest.warns(
        DataWarning, match="qrels: not read: more.tsv, as only train.tsv, dev.tsv and test.tsv are splits"
    ):
        assert set(load_embeddings(folder, val_fraction=0.0)) == {"train", "test"}


def test_unknown_ids_are_counted(folder):
    (folder / "qrels" / "all.tsv").write_text(JUDGED + "9\td1\t1\n1\td9\t1\n1\td8\t1\n")
    with pytest.warns(DataWarning) as told:
        load_embeddings(folder)
    messages = sorted(str(each.message) for each in told)
    assert "2 judgements of unknown documents do not count, the first in line 7: 'd9'" in messages[1]
    assert "1 judgements of unknown queries do not count, the first in line 6: '9'" in messages[0]


def test_vectors_of_zeros_are_counted(folder):
    np.save(folder / "corpus.npy", np.array([[0, 0], [1, 2], [0, 0], [0, 1]], dtype=np.float32))
    with pytest.warns(DataWarning, match=r"corpus.npy: 2 of 4 vectors are zeros, the first in row 0"):
        load_embeddings(folder)


def test_documents_that_are_judged_not_relevant_stay_judged(folder):
    (folder / "qrels" / "all.tsv").write_text(JUDGED + "1\td1\t0\n2\td1\t-1\n")
    lists = load_embeddings(folder, test_fraction=0, val_fraction=0)["train"]
    assert lists.relevance.counts.sum() == 6 and sorted(lists.relevance.grades.tolist()) == [0, 0, 1, 1, 2, 3]
    labels = lists[:].labels.view(3, 4)
    assert lists.pairs.tolist() == [int((row[:, None] > row).sum()) for row in labels]


def test_queries_without_relevant_documents_are_counted(folder):
    with pytest.warns(DataWarning, match="2 of 3 queries have no relevant document and are left out"):
        assert len(load_embeddings(folder, threshold=3, test_fraction=0, val_fraction=0)["train"]) == 1


def nan_at_row_two(folder):
    array = vectors(4)
    array[2, 1] = np.nan
    np.save(folder / "corpus.npy", array)


def two_arrays(folder):
    (folder / "corpus.npy").unlink()
    save_file({"a": vectors(4), "b": vectors(4)}, folder / "corpus.safetensors")


def written(name, text):
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (nan_at_row_two, r"corpus.npy: row 2 is not finite"),
        (lambda folder: np.save(folder / "corpus.npy", vectors(3)), r"3 vectors for the 4 ids of corpus.jsonl"),
        (lambda folder: np.save(folder / "queries.npy", np.ones((3, 5))), r"have 2 numbers, and those of queries 5"),
        (lambda folder: np.save(folder / "queries.npy", np.ones(3)), r"queries.npy: expected a vector of float16"),
        (lambda folder: np.save(folder / "queries.npy", np.ones((3, 2), int)), r"expected a vector of float16"),
        (lambda folder: (folder / "corpus.npy").write_bytes(b"nothing"), r"corpus.npy: cannot be read"),
        (lambda folder: (folder / "corpus.npy").unlink(), r"torchrank embed"),
        (lambda folder: (folder / "corpus.jsonl").unlink(), r"neither corpus.jsonl nor corpus.ids"),
        (written("queries.jsonl", '{"_id": "1"}\n{"id": "2"}\n'), r'queries.jsonl, line 2: expected a JSON object'),
        (written("queries.jsonl", '{"_id": "1"}\n{"_id": "2"}\n{"_id": "1"}\n'), r"the id '1' occurs twice"),
        (written("qrels/all.tsv", "1\td1\n"), r"all.tsv, line 1: 2 cells"),
        (written("qrels/all.tsv", "1\td1\thigh\n"), r"all.tsv, line 1: the grade 'high' is not a number"),
        (written("qrels/all.tsv", JUDGED + "1\td2\tnan\n"), r"all.tsv, line 6: the grade 'nan' is not a number"),
        (written("qrels/all.tsv", "1\td1\t1e39\n"), r"all.tsv, line 1: the grade '1e39' is .* too large"),
        (written("qrels/all.tsv", ""), r"all.tsv: no query of the folder has a relevant document"),
        (written("queries.ids", ""), r"queries.npy: 3 vectors for the 0 ids of queries.ids"),
        (lambda folder: (folder / "queries.ids").write_bytes(b"1\n\xe9\n3\n"), r"queries.ids, line 2: .* UTF-8"),
        (lambda folder: (folder / "qrels" / "all.tsv").write_bytes(b"\xe9\td1\t1\n"), r"all.tsv, line 1: .* UTF-8"),
        (lambda folder: (folder / "corpus.npy").write_bytes(b""), r"corpus.npy: cannot be read"),
        (lambda folder: np.save(folder / "queries.npy", np.ones((0, 2))), r"queries.npy: expected .* \(0, 2\)"),
        (lambda folder: save_file({"x": vectors(4)}, folder / "corpus.safetensors"), r"both corpus.npy and corpus.saf"),
        (two_arrays, r"corpus.safetensors: expected one array, found a, b"),
        (written("qrels/all.tsv", "1\td1\t1\n1\td1\t2\n"), r"all.tsv, line 2: document 'd1' has another grade"),
        (written("qrels/all.tsv", "1\td1\t0\n"), r"no query of the folder has a relevant document"),
        (lambda folder: split_files(folder, first="1\td1\t1\n", test="1\td1\t1\n"), r"no train.tsv among first.tsv"),
        (lambda folder: split_files(folder, train="1\td1\t1\n", dev="1\td1\t1\n", val="1\td1\t1\n"),
         r"qrels: dev.tsv and val.tsv are two files of the val queries"),
        (lambda folder: split_files(folder, test="1\td1\t1\n"), r"data.qrels=qrels/test.tsv divides the queries"),
        (lambda folder: split_files(folder), r"a file of judgements or a folder"),
    ],
)  # fmt: skip
def test_what_is_refused(folder, spoil, told):
    spoil(folder)
    with pytest.raises((DataError, FileNotFoundError), match=told):
        load_embeddings(folder)


def test_pickled_arrays_are_not_read(folder):
    np.save(folder / "corpus.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        load_embeddings(folder)


@pytest.mark.skipif("TORCHRANK_DATA" not in os.environ, reason="TORCHRANK_DATA is not set: no Cranfield collection")
def test_cranfield():
    sets = load_embeddings(Path(os.environ["TORCHRANK_DATA"], "cranfield"), threshold=1)
    assert {name: len(lists) for name, lists in sets.items()} == {"train": 144, "val": 36, "test": 45}
    assert sum(int((lists[:].labels > 0).sum()) for lists in sets.values()) == 1612
    order = np.random.default_rng((0, 1)).permutation(225)
    assert sorted(map(int, sets["test"].query_ids)) == sorted((order[:45] + 1).tolist())
