"""A corpus, query vectors and relevance lists against plain Python, and the errors of bad files."""

import numpy as np
import pytest
import torch

from torchrank.data import Judged
from torchrank.data.sources.retrieval import load_retrieval
from torchrank.errors import DataError, DataWarning


def make(rng, num_rows=12, num_queries=9, graded=False):
    """Random arrays, and the plain truth: {query: {row: grade}}."""
    own = np.where(rng.random(num_queries) < 0.5, rng.integers(0, num_rows, num_queries), -1)
    truth = {}
    for q in range(num_queries):
        rows = rng.permutation(np.setdiff1d(np.arange(num_rows), own[q]))[: rng.integers(0, 5)]
        truth[q] = {int(row): float(rng.integers(1, 4)) if graded else 1.0 for row in rows}
    arrays = {
        "corpus": rng.normal(size=(num_rows, 3)),
        "queries": rng.normal(size=(num_queries, 3)),
        "query_rows": own,
        **csr("relevant", [list(truth[q]) for q in range(num_queries)]),
    }
    if graded:
        arrays["relevant_grades"] = np.array([grade for q in truth.values() for grade in q.values()])
    return arrays, truth


def csr(name, lists):
    flat = np.array([row for rows in lists for row in rows], dtype=np.int64)
    return {name: flat, f"{name}_offsets": np.concatenate(([0], np.cumsum([len(rows) for rows in lists])))}


def check(sets, truth, own, allowed, vectors):
    """Every list of every set typed again: `allowed(q)` are the rows that query q ranks, in order."""
    for part in sets.values():
        batch = part[torch.arange(len(part))]
        for place, q in enumerate(int(name) for name in part.query_ids):
            first, last = batch.offsets[place : place + 2].tolist()
            rows = [row for row in allowed(q) if row != own[q]]
            labels = [truth[q].get(row, 0.0) for row in rows]
            assert batch.index[first:last].tolist() == rows
            assert batch.labels[first:last].tolist() == labels
            assert part.lengths[place] == len(rows)
            assert part.pairs[place] == sum(a > b for a in labels for b in labels)
            assert np.array_equal(batch.queries[place], vectors[q].astype(np.float32))
        single = [part[q : q + 1] for q in range(len(part))]
        assert torch.equal(torch.cat([b.labels for b in single]), batch.labels)
        assert torch.equal(torch.cat([b.index for b in single]), batch.index)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_all_rows_are_candidates(tmp_path, seed, graded):
    arrays, truth = make(np.random.default_rng(seed), graded=graded)
    np.savez(tmp_path / "data.npz", **arrays)
    sets = load_retrieval("data.npz", root=tmp_path, seed=seed)
    assert {name: len(part) for name, part in sets.items()} == {"train": 7, "val": 1, "test": 1}
    assert all(isinstance(part.relevance, Judged) for part in sets.values())
    highest = max((grade for rows in truth.values() for grade in rows.values()), default=0)
    assert sets["train"].num_grades == highest + 1
    check(sets, truth, arrays["query_rows"], lambda q: range(12), arrays["queries"])


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_given(tmp_path, seed):
    rng = np.random.default_rng(seed)
    arrays, truth = make(rng, graded=True)
    chosen = [rng.permutation([r for r in range(12) if r != own and r % 4])[:7] for own in arrays["query_rows"]]
    lost = sum(row not in set(chosen[q].tolist()) for q in truth for row in truth[q])
    np.savez(tmp_path / "data.npz", **arrays, **csr("candidates", chosen))
    with pytest.warns(DataWarning, match=f"{lost} of .* relevant documents are not among the candidates"):
        sets = load_retrieval("data.npz", root=tmp_path)
    check(sets, truth, arrays["query_rows"], lambda q: chosen[q].tolist(), arrays["queries"])


def test_text_files_say_the_same_as_arrays(tmp_path):
    arrays, truth = make(np.random.default_rng(0), graded=True)
    ids = {"query_ids": [f"q{q}" for q in range(9)], "corpus_ids": [f"d{row:02}" for row in range(12)]}
    lists = {name: arrays.pop(name) for name in ("relevant", "relevant_offsets", "relevant_grades")}
    np.savez(tmp_path / "arrays.npz", **arrays, **lists)
    np.savez(tmp_path / "named.npz", **arrays, **ids)
    np.savez(tmp_path / "numbers.npz", **arrays)
    lines = [(q, row, grade) for q in truth for row, grade in truth[q].items()]
    lines = [lines[i] for i in np.random.default_rng(1).permutation(len(lines))] + [
        (0, int(arrays["query_rows"][1]), 0)
    ]
    (tmp_path / "names.tsv").write_text("\n\n".join(f"q{q}\td{row:02}\t{grade}" for q, row, grade in lines))
    (tmp_path / "numbers.txt").write_text("\r\n".join(f"{q} {row} {grade:g}" for q, row, grade in lines))
    wanted = load_retrieval(tmp_path / "arrays.npz")
    named = load_retrieval("named.npz", root=tmp_path, relevant="names.tsv")
    numbers = load_retrieval("numbers.npz", root=tmp_path, relevant="numbers.txt")
    for name, part in wanted.items():
        for other in (named[name], numbers[name]):
            assert torch.equal(part[:].labels, other[:].labels) and np.array_equal(part.pairs, other.pairs)
    assert named["test"].query_ids[0].startswith("q")
    first = named["train"].tiebreak()[: named["train"].lengths[0]]
    rows = named["train"][0].index
    assert rows[first.argsort()].tolist() == sorted(rows.tolist(), reverse=True)
    with pytest.raises(DataError, match="no document ids"):
        numbers["train"].tiebreak()


def test_relevance_need_not_be_mutual(tmp_path):
    lists = csr("relevant", [[1], [2], [0]])
    np.savez(
        tmp_path / "data.npz", corpus=np.eye(3), queries=np.eye(3), query_rows=[0, 1, 2], split=["train"] * 3, **lists
    )
    train = load_retrieval(tmp_path / "data.npz")["train"]
    assert train[:].index.tolist() == [1, 2, 0, 2, 0, 1] and train[:].labels.tolist() == [1, 0, 0, 1, 1, 0]


def test_given_and_random_splits_do_not_overlap(tmp_path):
    arrays, _ = make(np.random.default_rng(0), num_queries=50)
    np.savez(tmp_path / "random.npz", **arrays)
    split = np.random.default_rng(0).choice(["train", "val", "test"], 50)
    np.savez(tmp_path / "given.npz", **arrays, split=split)
    given = load_retrieval("given.npz", root=tmp_path)
    assert all((split[part.query_ids.astype(int)] == name).all() for name, part in given.items())
    first, again, other = (load_retrieval("random.npz", root=tmp_path, fold=fold) for fold in (1, 1, 2))
    for sets in (given, first, other):
        ids = np.concatenate([part.query_ids for part in sets.values()])
        assert len(ids) == len(set(ids)) == 50
        assert len({id(part.x) for part in sets.values()}) == 1
    assert {name: len(part) for name, part in first.items()} == {"train": 32, "val": 8, "test": 10}
    assert list(first["test"].query_ids) == list(again["test"].query_ids) != list(other["test"].query_ids)


def test_subsets_move_and_chain(tmp_path):
    arrays, truth = make(np.random.default_rng(3), graded=True)
    np.savez(tmp_path / "data.npz", **arrays)
    train = load_retrieval(tmp_path / "data.npz", val_fraction=0, test_fraction=0)["train"]
    part = train.subset(np.array([8, 2, 5])).to("cpu").subset(torch.tensor([2, 0]))
    assert list(part.query_ids) == ["5", "8"] and part.num_grades == train.num_grades
    check({"train": part}, truth, arrays["query_rows"], lambda q: range(12), arrays["queries"])


def wrong(**changes):
    """Arrays of three queries on four rows, with changes that break them; None takes an array out."""
    arrays = {
        "corpus": np.eye(4),
        "queries": np.eye(4)[:3],
        "query_rows": [0, -1, 2],
        **csr("relevant", [[1], [3], []]),
    }
    return {name: value for name, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (wrong(corpus=None), r"expected an array corpus .*, found \['queries'"),
        (wrong(queries=np.ones(3)), "expected an array queries"),
        (wrong(queries=np.ones((3, 5))), "4 features, but query vectors have 5"),
        (wrong(corpus=np.full((4, 4), np.nan)), r"corpus\[0, 0\] is not a finite number"),
        (wrong(query_rows=[0, 1]), "expected 3 integers"),
        (wrong(query_rows=[0, 4, 1]), r"query_rows\[1\] is 4.*rows 0..3"),
        (wrong(relevant=None), "expected the arrays relevant and relevant_offsets, or set data.relevant="),
        (wrong(relevant=[1, 4]), r"relevant, query 1, entry 0 of its list: row 4.*rows 0..3 only"),
        (wrong(relevant=[1, -1]), r"query 1, entry 0 of its list: row -1"),
        (wrong(relevant=[0, 3]), r"query 0, entry 0 of its list: row 0.*the query itself"),
        (wrong(relevant=[1.5, 3]), "integers"),
        (wrong(**csr("relevant", [[1], [3, 1, 3], []])), r"query 1, entry 2 of its list: row 3.*twice"),
        (wrong(relevant_offsets=[0, 1, 2]), "4 integers that rise from 0 to 2"),
        (wrong(relevant_offsets=[0, 2, 1, 2]), "4 integers that rise"),
        (wrong(relevant_offsets=[0.0, 1.0, 2.0, 2.0]), "4 integers that rise"),
        (wrong(relevant_grades=[1, -1]), "query 1, entry 0 .*grade -1: grades must be finite and >= 0"),
        (wrong(relevant_grades=[1, np.nan]), "grades must be finite"),
        (wrong(relevant_grades=[1]), "1 relevant_grades for 2 rows"),
        (wrong(split=["train", "dev", "test"]), "'dev' for query 1"),
        (wrong(split=["val", "val", "test"]), "train for none of 3"),
        (wrong(query_ids=["a", "a", "b"]), "query_ids contains an id twice"),
        (wrong(corpus_ids=["a"]), "corpus_ids has shape"),
        (wrong(**csr("candidates", [[1], [9], []])), "candidates, query 1, entry 0 of its list: row 9"),
    ],
)
def test_bad_arrays_are_located(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_retrieval("data.npz", root=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n\n1 9\n", "line 3: '9' is not one of 4 corpus"),
        ("7 1\n", "line 1: '7' is not one of 3 queries"),
        ("0 1 x\n", "line 1: grade 'x'"),
        ("0\n", "line 1: 1 words"),
        ("0 1\n0 1\n", "entry 1 of its list: row 1.*twice"),
    ],
)
def test_bad_text_is_located(tmp_path, text, message):
    np.savez(tmp_path / "data.npz", **wrong())
    (tmp_path / "lists.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_retrieval("data.npz", root=tmp_path, relevant="lists.txt")


def test_missing_files_and_fractions(tmp_path):
    np.savez(tmp_path / "data.npz", **wrong())
    with pytest.raises(FileNotFoundError, match=r"not found: .*other.npz.*data.root"):
        load_retrieval("other.npz", root=tmp_path)
    (tmp_path / "text.npz").write_text("0 1 2")
    with pytest.raises(DataError, match=r"text.npz cannot be read as npz \(not a zip archive\)"):
        load_retrieval("text.npz", root=tmp_path)
    np.savez(tmp_path / "objects.npz", corpus=np.eye(2), queries=np.array([None]))
    with pytest.raises(DataError, match=r"objects.npz cannot be read as npz .*without objects"):
        load_retrieval("objects.npz", root=tmp_path)
    with pytest.raises(FileNotFoundError, match="query document"):
        load_retrieval("data.npz", root=tmp_path, relevant="none.tsv")
    for options in ({"test_fraction": 1.0}, {"val_fraction": -0.1}):
        with pytest.raises(ValueError, match="must be >= 0 and < 1, and leave a training query of 3"):
            load_retrieval("data.npz", root=tmp_path, **options)
