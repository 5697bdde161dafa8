"""Figures of metrics: what is drawn, beside the numbers typed again plainly."""

import numpy as np
import pytest

from tests.report.sweep import write_run
from torchrank.report.plots.metrics import plot_measures, plot_spectrum, spectrum
from torchrank.report.summary import tabulate


def test_a_spectrum_is_that_of_its_factors(tmp_path):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    metric = rotation @ np.diag([0.0, 6.0, 1.0, 0.0, 3.0]) @ rotation.T
    assert spectrum(metric) == pytest.approx([0.6, 0.3, 0.1, 0, 0], abs=1e-12)
    figure = plot_spectrum({"mlr": metric, "euclidean": 7 * np.eye(5)})
    low, level = figure.axes[0].lines
    assert low.get_label() == "mlr: 3 of 5" and level.get_label() == "euclidean: 5 of 5"
    assert low.get_xdata().tolist() == [1, 2, 3] and low.get_ydata() == pytest.approx([0.6, 0.3, 0.1])
    assert level.get_ydata() == pytest.approx([0.2] * 5)
    figure.savefig(tmp_path / "figure.png", dpi=40)


def test_a_metric_of_zeros_has_no_spectrum():
    with pytest.raises(ValueError, match=r"metric \(3, 3\) whose eigenvalues sum to 0 has no spectrum: raise C"):
        plot_spectrum({"mlr": np.zeros((3, 3))})


def test_bars_are_fold_means_with_their_deviation(tmp_path):
    means = {"gmml": [0.3, 0.5], "mlr": [0.6, 0.7]}
    for name, values in means.items():
        for fold, value in enumerate(values, 1):
            queries = {"default/map": [value - 0.1, value + 0.1], "default/auc": [0.8, 0.8]}
            write_run(tmp_path / f"{name}{fold}", name, value=value, queries=queries, fold=fold, selection="val/map")
    (table,) = tabulate(tmp_path)["tables"]
    figure = plot_measures(table, ["map", "auc", "fit_seconds"])
    first, second, seconds = figure.axes
    assert [label.get_text() for label in first.get_xticklabels()] == ["mlr", "gmml"]  # as in the table
    assert [bar.get_height() for bar in first.patches] == pytest.approx([0.65, 0.4])
    (ends,) = [part for part in first.collections]
    lengths = [np.ptp(path.vertices[:, 1]) for path in ends.get_paths()]
    assert lengths == pytest.approx([2 * np.std(means[name], ddof=1) for name in ("mlr", "gmml")])
    assert [bar.get_height() for bar in second.patches] == pytest.approx([0.8, 0.8])
    assert [bar.get_height() for bar in seconds.patches] == [2.0, 2.0] and not seconds.collections
    assert first.get_ylabel() == "test map, convention default" and seconds.get_ylabel() == "seconds of the fit"
    figure.savefig(tmp_path / "figure.png", dpi=40)
    with pytest.raises(ValueError, match="mlr has no mrr in convention default: leave it out, or run it again"):
        plot_measures(table, ["mrr"])


def test_one_run_has_bars_without_deviation(tmp_path):
    write_run(tmp_path / "a", "mlr", value=0.5, queries={"default/map": [0.5, 1.0]}, selection="val/map")
    (table,) = tabulate(tmp_path)["tables"]
    plot_measures(table, ["map"]).savefig(tmp_path / "figure.png", dpi=40)
