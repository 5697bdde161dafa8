"""notebooks/cranfield.py on a small folder: the curve, its order of queries, its intervals, and what is kept."""

import json

import numpy as np
import pytest
from scipy import stats

from notebooks import cranfield
from torchrank.data.sources.embeddings import load_embeddings

WIDTH, ASKED = 8, 32  # 20 of the queries are for training


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Queries point beside the documents that they are about, always in the same way."""
    draw = np.random.default_rng(0)
    documents = draw.normal(size=(60, WIDTH)).astype(np.float32)
    about = draw.integers(60, size=ASKED)
    queries = documents[about] + 0.8 * documents[about][:, ::-1]
    place = tmp_path / "folder"
    (place / "qrels").mkdir(parents=True)
    for name, vectors in (("corpus", documents), ("queries", queries)):
        np.save(place / f"{name}.npy", vectors)
        lines = [json.dumps({"_id": f"{name[0]}{row}", "text": f"text {row}"}) for row in range(len(vectors))]
        (place / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    judged = [f"q{row}\tc{document}\t1" for row, document in enumerate(about)]
    (place / "qrels/all.tsv").write_text("\n".join(judged) + "\n")
    monkeypatch.setattr(
        cranfield, "adapter", lambda **given: cranfield.Adapter(WIDTH, **{"rounds": 4, "lr": 0.2} | given)
    )
    return place


@pytest.mark.slow
def test_the_curve_is_measured_once_and_written(folder, tmp_path, monkeypatch, capsys):
    out, fits, fit = tmp_path / "out", [], cranfield.Adapter.fit
    monkeypatch.setattr(
        cranfield.Adapter, "fit", lambda own, train, val: fits.append(train.query_ids) or fit(own, train, val)
    )
    arguments = [str(folder), "--curve", "--folds", "2", "--out", str(out)]
    cranfield.main(arguments)
    first, told = (out / "curve.md").read_text(), capsys.readouterr().out
    for number in (1, 2):
        assert set(json.loads((out / f"binary-{number}-curve.json").read_text())) == {"10", "20"}
    assert [line.split(" | ")[0] for line in first.splitlines()[2:]] == ["| 10", "| 20"]
    assert first in told and "fold 2: 20 training queries" in told
    assert (out / "curve.png").stat().st_size > 1000
    sizes = [len(each) for each in fits if len(each) == 10]
    assert len(sizes) == 2 * len(cranfield.OF_CURVE)
    ten, twenty = next(set(each) for each in fits if len(each) == 10), set(fits[0])
    assert ten < twenty  # the unchanged vectors are measured with all training queries
    fits.clear()
    cranfield.main(arguments)
    assert not [each for each in fits if len(each) == 10] and (out / "curve.md").read_text() == first


def test_a_point_is_the_mean_with_the_interval_of_the_t_distribution():
    folds = [{10: 0.01, 20: 0.05}, {10: -0.02, 20: 0.03, 40: 0.3}, {10: 0.04, 20: 0.01}]
    found = cranfield.points(folds)
    assert [size for size, *_ in found] == [10, 20]  # the sizes that all folds have
    for size, mean, half in found:
        values = [fold[size] for fold in folds]
        low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert (mean - half, mean + half) == pytest.approx((low, high))
    assert "| 1 of 3 |" in cranfield.curve_table(folds).splitlines()[2]


def test_the_gain_is_that_of_the_chosen_adapter(folder, tmp_path):
    """By hand, with all training queries: the best on validation of the candidates and of no change."""
    found = cranfield.gains(folder, 1, 1.0, tmp_path / "kept.json")
    sets = load_embeddings(folder, fold=1, threshold=1.0)
    order = np.random.default_rng((1, 1)).permutation(len(sets["train"]))
    train, tried = sets["train"].subset(order[:20]), [cranfield.adapter(rounds=1)]
    for loss, pull in cranfield.OF_CURVE:
        tried.append(cranfield.adapter(loss=loss, pull=pull).fit(train, sets["val"]))
    plain = {}
    for name in ("val", "test"):
        lists = sets[name]
        plain[name] = [mean_ndcg(ranker.score(lists[:]).detach().numpy(), lists) for ranker in tried]
    best = int(np.argmax(plain["val"]))
    assert found[20] == pytest.approx(plain["test"][best] - plain["test"][0]) and found[20] > 0


def mean_ndcg(scores, lists):
    """NDCG@10 where each query has one relevant document."""
    labels = lists[:].labels.numpy().reshape(len(lists), -1)
    table = scores.reshape(labels.shape)
    ranks = 1 + (table > table[labels == 1][:, None]).sum(1)
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean()
