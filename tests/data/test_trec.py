"""TREC runs and qrels: what is read, what is refused, and the numbers of trec_eval."""

import gzip

import numpy as np
import pytest
import torch

from torchrank import read_qrels, read_run
from torchrank.errors import DataError
from torchrank.functional import evaluate

MEASURES = {  # ours: trec_eval's
    "map": "map",
    "map@5": "map_cut_5",
    "ndcg": "ndcg",
    "ndcg@3": "ndcg_cut_3",
    "ndcg@10": "ndcg_cut_10",
    "p@5": "P_5",
    "recall@5": "recall_5",
    "mrr": "recip_rank",
}


@pytest.fixture
def write(tmp_path):
    def write(content, name):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    "text",
    [
        "a Q0 d1 1 2.5 x\nb Q0 d1 1 -1e0 x\na Q0 d2 2 2 x\n",
        "a\tQ0\td1\t1\t  2.5\tx\r\nb Q0 d1 1 -1 x\r\na  Q0 d2 2 2.0  x",
        "\n# a comment\n a Q0 d1 1 2.5 x \n\nb Q0 d1 1 -1.0 x\n# another\na Q0 d2 2 2 x\n \n",
        "a Q0 d1 1 +2.5 x\nb Q0 d1 1 -1.0 x\na Q0 d2 2 2. x\n",
    ],
)
def test_a_run_is_grouped_by_query(write, text):
    for content, name in ((text, "a.run"), (gzip.compress(text.encode()), "a.run.gz")):
        run = read_run(write(content, name))
        assert (list(run.query_ids), list(run.document_ids)) == (["a", "b"], ["d1", "d2", "d1"])
        assert run.scores.tolist() == [2.5, 2, -1] and run.offsets.tolist() == [0, 2, 3] and len(run) == 2
        assert run.scores.dtype == torch.float64


def test_ids_may_be_any_text(write):
    qrels = read_qrels(write('1 0 \u00e9"x,y 1\n01 0 1e5 -2\n'.encode() + b"1 0 \xff 0\n", "odd.qrels"))
    assert (qrels.query_ids, qrels.document_ids) == (["1", "01"], ['\u00e9"x,y', "\\xff", "1e5"])
    assert qrels.labels.tolist() == [1, 0, -2]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (
            read_run,
            "a Q0 d 1 2 x\na Q0 d 1 2\n",
            "line 2: expected 6 tokens 'query Q0 document rank score tag', found 5",
        ),
        (read_run, "a Q0 d 1 2 x y\n", "line 1: expected 6 tokens"),
        (read_run, "# c\n\na Q0 d 1 two x\n", "line 3: score 'two': expected a finite number"),
        (read_run, "a Q0 d 1 nan x\n", "line 1: score 'nan'"),
        (read_run, "a Q0 d 1 1e999 x\n", "line 1: score '1e999'"),
        (read_run, "a Q0 d 1 2 x\nb Q0 d 1 2 x\n# c\na Q0 d 2 1 x\n", "line 4: document 'd' of query 'a' is in line 1"),
        (read_qrels, "a 0 d 1\na 0 d 1\n", "line 2: document 'd' of query 'a' is in line 1 already"),
        (read_qrels, "a 0 d\n", "line 1: expected 4 tokens 'query 0 document grade', found 3"),
        (read_qrels, "", "the file has no lines 'query 0 document grade'"),
        (read_qrels, "\n # c\n", "the file has no lines"),
        (read_qrels, "a 0 d 1\n".encode("utf-16"), "line 1"),
        (read_run, gzip.compress(b"a Q0 d 1 2 x\n", mtime=0)[:-5], "damaged or truncated"),
    ],
)
def test_wrong_files_are_refused_with_their_line(write, read, text, message):
    path = write(text, "some.file")
    with pytest.raises(DataError) as caught:
        read(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def random_files(seed):
    """A run and qrels with ties, unretrieved relevant and unjudged documents, negative grades, queries in one only."""
    generator = np.random.default_rng(seed)
    run, qrels = {}, {}
    for query in map(str, generator.permutation(12)):
        documents = [f"d{number}" for number in range(30)]
        if query not in ("0", "1"):
            chosen = generator.choice(documents, generator.integers(1, 25), replace=False)
            run[query] = {d: float(s) for d, s in zip(chosen, generator.integers(0, 8, len(chosen)) / 3, strict=True)}
        if query not in ("2", "3"):
            chosen = generator.choice(documents, generator.integers(1, 25), replace=False)
            grades = generator.integers(0, 1, len(chosen)) if query == "4" else generator.integers(-2, 4, len(chosen))
            qrels[query] = {d: int(g) for d, g in zip(chosen, grades, strict=True)}
    return run, qrels


def texts(run, qrels):
    """Both as files; the lines of a run are shuffled, and its ranks mean nothing."""
    lines = [f"{q}\tQ0\t{d}\t1\t  {s!r}\tSTANDARD" for q, found in run.items() for d, s in found.items()]
    np.random.default_rng(0).shuffle(lines)
    return "\n".join(lines), "".join(f"{q} 0 {d} {g}\n" for q, found in qrels.items() for d, g in found.items())


def trec_eval(run, qrels, level=1):
    """What trec_eval measures, by query.

    It reads beyond the end of its tables on negative grades, which it counts as unjudged, and on queries without a
    grade from the level on, for which it gives 0 (but for NDCG, which knows no level).
    """
    pytrec_eval = pytest.importorskip("pytrec_eval")
    names = {"map", "map_cut.5", "ndcg", "ndcg_cut.3,10", "P.5", "recall.5", "recip_rank"}
    known = {query: {d: max(g, 0) for d, g in found.items()} for query, found in qrels.items()}
    safe = {query: found for query, found in known.items() if max(found.values()) >= level}
    values = pytrec_eval.RelevanceEvaluator(safe, names, relevance_level=level).evaluate(run)
    graded = trec_eval(run, qrels, level - 1) if level > 1 else {}
    for query in (query for query in known if query in run and query not in safe):
        ndcg = {name: value for name, value in graded.get(query, {}).items() if name.startswith("ndcg")}
        values[query] = dict.fromkeys(MEASURES.values(), 0.0) | ndcg
    return values


@pytest.mark.peers
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("level", [1, 2])
def test_the_numbers_are_those_of_trec_eval(write, seed, level):
    run, qrels = random_files(seed)
    expected = trec_eval(run, qrels, level)
    files = texts(run, qrels)
    judged = read_run(write(files[0], "a.run")).judge(read_qrels(write(files[1], "a.qrels")))
    assert sorted(judged.query_ids) == sorted(expected) and set(judged.missing_queries) == {"0", "1"}
    assert set(judged.unjudged_queries) == {"2", "3"}
    found = evaluate(**judged.lists, measures=list(MEASURES), convention="trec", threshold=level)
    for ours, theirs in MEASURES.items():
        values = [expected[query][theirs] for query in judged.query_ids]
        np.testing.assert_allclose(found[ours].numpy(), values, rtol=0, atol=1e-9, err_msg=ours)


def test_queries_without_results_count_nothing_if_asked_for(write):
    run = read_run(write("b Q0 x 1 1 r\n", "a.run"))
    qrels = read_qrels(write("a 0 x 1\nb 0 x 1\nc 0 x 0\n", "a.qrels"))
    judged = run.judge(qrels, complete=True)
    assert judged.query_ids == ["a", "b", "c"] and judged.offsets.tolist() == [0, 0, 1, 1]
    found = evaluate(**judged.lists, measures=list(MEASURES), convention="trec")
    assert all(values.tolist()[::2] == [0, 0] for values in found.values()) and found["map"].tolist() == [0, 1, 0]
    lists = judged.to_set()
    assert lists.x.tolist() == [[1.0]] and list(lists.query_ids) == ["a", "b", "c"] and len(lists) == 3


def test_files_without_a_common_query(write):
    run, qrels = read_run(write("b Q0 x 1 1 r\n", "a.run")), read_qrels(write("a 0 x 1\n", "a.qrels"))
    with pytest.raises(DataError, match=r"a\.run and a\.qrels have no query in common"):
        run.judge(qrels)
