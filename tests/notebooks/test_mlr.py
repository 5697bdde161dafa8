"""The figures of mlr.ipynb: what is drawn, beside the numbers typed again plainly."""

import numpy as np
import pytest

from notebooks.mlr import plot_features, plot_neighbours, plot_projection
from tests.report.sweep import write_run
from torchrank.report.knn import SELECTIONS, tabulate_neighbours


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_points_stand_at_their_two_leading_components(tmp_path, rank):
    generator = np.random.default_rng(rank)
    train, test = generator.normal(size=(20, rank)), generator.normal(size=(6, rank))
    classes, test_classes = np.array(["b", "a"] * 10), np.array(["a", "a", "b", "b", "a", "b"])
    figure = plot_projection(train, classes, test, test_classes, title="two classes")
    (axes,) = figure.axes
    small_a, small_b, large_a, large_b = axes.collections
    for drawn, rows in ((small_a, train[1::2]), (small_b, train[::2]), (large_b, test[[2, 3, 5]])):
        second = rows[:, 1] if rank > 1 else np.zeros(len(rows))
        assert np.array_equal(drawn.get_offsets(), np.column_stack([rows[:, 0], second]))
    assert np.array_equal(small_a.get_facecolor(), large_a.get_facecolor())
    assert not np.array_equal(large_a.get_facecolor(), large_b.get_facecolor())
    assert small_a.get_sizes()[0] < large_a.get_sizes()[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"] and axes.get_aspect() == 1
    figure.savefig(tmp_path / "figure.png", dpi=40)


def test_rows_of_noise_are_counted_where_they_are_exactly_zero(tmp_path):
    dense = np.full((5, 5), 1e-12) + np.diag([3.0, 4.0, 1.0, 0.0, 0.0])
    sparse = np.zeros((5, 5))
    sparse[1, 1] = 2.0
    figure = plot_features({"mlr": dense, "rmlr": sparse, "nothing": np.zeros((5, 5))}, noise=3)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "mlr: 0 of 3 noise rows are 0, 0 of 2 others"
    assert titles[1] == "rmlr: 3 of 3 noise rows are 0, 1 of 2 others"
    assert titles[2] == "nothing: 3 of 3 noise rows are 0, 2 of 2 others"
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([0.75, 1, 0.25, 0, 0], abs=1e-9)
    assert figure.axes[1].lines[0].get_xdata().tolist() == [1, 3, 4, 5]
    figure.savefig(tmp_path / "figure.png", dpi=40)


def test_errors_of_both_selections_and_what_was_published(tmp_path):
    generator = np.random.default_rng(3)
    for data, name, fold in [(d, n, f) for d in ("wine", "own") for n in ("mlr_map", "lmnn") for f in (1, 2, 3)]:
        wrong = generator.integers(0, 2, size=10)
        write_run(tmp_path / f"{data}{name}{fold}", name, value=0.1, queries={"default/knn_error@3": wrong},
                  fold=fold, data=f"points/{data}", mode="min")  # fmt: skip
    write_run(tmp_path / "mrr", "mlr_mrr", value=0.1, queries={"default/knn_error@3": [0, 1]}, data="points/own")
    document = tabulate_neighbours(tmp_path)
    figure = plot_neighbours(document, ["mlr_mrr", "mlr_map", "lmnn"])
    own, wine = figure.axes
    assert own.get_title() == "own, 3 splits" and wine.get_title() == "wine, 3 splits"
    assert [label.get_text() for label in own.get_yticklabels()] == ["mlr_mrr", "mlr_map", "lmnn"]
    assert len(own.patches) == 6 and len(wine.patches) == 4 and own.get_ylim() == (2.5, -0.5)  # the first on top
    found = {method["name"]: method for method in document["tables"][1]["methods"]}
    widths = [found[name][selection]["percent"] for selection in SELECTIONS for name in ("mlr_map", "lmnn")]
    assert [bar.get_width() for bar in wine.patches] == pytest.approx(widths)
    (published,) = [line for line in wine.lines if line.get_marker() == "d"]
    assert list(published.get_xdata()) == [1.0, 1.7]  # McFee & Lanckriet: MLR-MAP and LMNN on Wine
    assert not [line for line in own.lines if line.get_marker() == "d"]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[-1].startswith("published") and set(texts[:2]) == set(SELECTIONS.values())
    figure.savefig(tmp_path / "figure.png", dpi=40)
