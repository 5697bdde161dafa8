"""Figures of single fits: the numbers of the file, and what is refused."""

import numpy as np
import pytest

from torchrank.report.plots.runs import plot_training, read_training


def write(folder, rows):
    (folder / "log").mkdir(parents=True)
    (folder / "log" / "metrics.csv").write_text("\n".join(["epoch,step,train/objective,val/map", *rows]) + "\n")
    return folder


def test_rounds_and_values(tmp_path):
    folder = write(tmp_path / "a", ["0,0,,0.25", "0,0,7.5,", "1,1,,0.5", "1,1,6.25,"])
    rounds, values = read_training(folder, "val/map")
    np.testing.assert_array_equal(rounds, [1, 2])
    np.testing.assert_array_equal(values, [0.25, 0.5])
    np.testing.assert_array_equal(read_training(folder, "train/objective")[1], [7.5, 6.25])


def test_the_validation_after_the_fit_is_no_round(tmp_path):
    folder = write(tmp_path / "a", ["0,0,,0.25", "0,0,7.5,", "1,1,,0.5", "1,1,6.25,", "2,2,,0.5"])
    np.testing.assert_array_equal(read_training(folder, "val/map")[0], [1, 2])
    untrained = write(tmp_path / "b", ["0,0,,0.25"])
    np.testing.assert_array_equal(read_training(untrained, "val/map")[0], [1])


def test_a_panel_for_each_value_and_a_line_for_each_run(tmp_path):
    folders = {name: write(tmp_path / name, [f"0,0,{start},0.1", f"1,1,{start - 1},0.2"]) for name, start in
               (("l1", 9), ("induction", 5))}  # fmt: skip
    figure = plot_training(folders, ["train/objective", "val/map"])
    assert [axes.get_title() for axes in figure.axes] == ["train/objective", "val/map"]
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert drawn == {"l1": [9, 8], "induction": [5, 4]}


def test_what_is_not_there_is_named(tmp_path):
    folder = write(tmp_path / "a", ["0,0,7.5,"])
    with pytest.raises(ValueError, match="no value 'val/map': choose one of train/objective"):
        read_training(folder, "val/map")
    with pytest.raises(ValueError, match=r"not found: .*metrics\.csv"):
        read_training(tmp_path, "val/map")
