"""notebooks/lgmml_groups.py draws the groups and slopes that the ranker scores by; the page that shows it runs."""

import re

import numpy as np
import pytest
import torch

from notebooks.lgmml_groups import draw, look_at, main, most_different
from tests.docs.pages import DOCS, blocks
from torchrank import LGMML
from torchrank.data import synthetic_splits


def test_slopes_and_groups_are_those_of_the_scores():
    sets = synthetic_splits(60, num_features=8, mean_length=12.0)
    train = sets["train"]
    given = {"t": 0.25, "ridge": 0.1, "kappa": torch.inf, "transform": "standard"}
    ranker = LGMML(8, num_groups=3, alpha=5.0, gate="hard", rounds=1, **given).fit(train)
    found = look_at(ranker, train)
    assert found.slopes.shape == (4, 8) and found.centres.shape == (3, 2)
    rows, scores = ranker.transform(train.x, train.offsets).double(), ranker(train.x, train.offsets).double()
    for group, first, last in zip(found.own, train.offsets[:-1], train.offsets[1:], strict=True):
        mine = rows[first:last].numpy() @ found.slopes[1 + group]
        np.testing.assert_array_equal(np.argsort(-mine), np.argsort(-scores[first:last].numpy()))
    means = np.stack([found.points[found.own == group].mean(0) for group in range(3)])
    np.testing.assert_allclose(means, found.centres, atol=1e-5)  # k-means has converged
    left, right, _ = draw(found, count=5).axes
    assert len(left.collections) == 6 and right.images[0].get_array().shape == (4, 5)


def test_one_group_shows_its_largest_slopes():
    assert most_different(np.array([[0.1, -3.0, 2.0]]), 2).tolist() == [1, 2]


def test_it_writes_a_picture(tmp_path):
    main(["--out", str(tmp_path / "small.png"), "--queries", "60", "--features", "8"])
    assert (tmp_path / "small.png").stat().st_size < 200_000


@pytest.mark.slow
def test_the_code_of_the_page_prints_what_it_says(capsys):
    first, second = blocks("methods/lgmml.md")
    known: dict = {}
    exec(first, known)
    value, locality = capsys.readouterr().out.splitlines()
    promised, one_group = map(float, re.findall(r"0\.\d{4}", first.splitlines()[-2]))
    assert float(value[7:13]) == pytest.approx(promised, abs=1e-3) and f"# {locality}" in first
    one = known["LGMML"](num_features=30, num_groups=1).fit(known["sets"]["train"], known["sets"]["val"])
    scores = one(known["x"], known["offsets"])
    found = known["ndcg"](scores, known["labels"], known["offsets"], k=10).nanmean()
    assert float(found) == pytest.approx(one_group, abs=1e-3)
    exec(second, known)
    scores = known["ranker"](known["x"], known["offsets"]).double()
    assert float(known["parts"].sum()) == pytest.approx(float(scores[0] - scores[1]), abs=1e-5)
    assert float(capsys.readouterr().out.splitlines()[-1][7:-1]) < 1e-5


def test_the_page_is_short():
    assert len((DOCS / "methods/lgmml.md").read_text().splitlines()) <= 175
