"""Figures of sweeps: the numbers typed again plainly, what is drawn, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from tests.report.sweep import write_run
from torchrank.record import read_runs
from torchrank.report.plots.runs import plot_sweep, sweep_lines

METRICS = (1, 2, 10)


def write_gaussian(root, *, centres=(10, 50), folds=(1, 2, 3), seeds=(0, 1)):
    """Two numbers of centres; lgmml swept over the metrics and over t, gmml without them. Returns the test values."""
    generator, values = np.random.default_rng(0), {}
    for number in centres:
        for fold in folds:
            for seed in seeds:
                for metrics in (*METRICS, None):
                    for t in (0.25, 0.5) if metrics else (None,):
                        name = "gmml" if metrics is None else "lgmml"
                        own = {"model.metrics": metrics, "model.t": t} if metrics else {}
                        precision, validation = generator.random(4), generator.random()
                        folder = root / f"{number}-{fold}-{seed}-{metrics}-{t}"
                        write_run(folder, name, value=validation, queries={"default/map": precision}, fold=fold,
                                  seed=seed, settings={"data.centres": number, **own}, data="gaussian")  # fmt: skip
                        values[number, metrics, fold, seed, t] = validation, precision.mean()
    return values


def expected(values, number, metrics, folds=(1, 2, 3), seeds=(0, 1)):
    """Per fold and seed the test value of the t with the best validation; mean and deviation over the fold means."""
    ts = (0.25, 0.5) if metrics else (None,)
    means = [np.mean([max(values[number, metrics, fold, seed, t] for t in ts)[1] for seed in seeds]) for fold in folds]
    return np.mean(means), np.std(means, ddof=1)


def test_points_are_chosen_by_validation_and_averaged_over_folds(tmp_path):
    values = write_gaussian(tmp_path)
    lines = sweep_lines(read_runs(tmp_path), "model.metrics", "map", group="data.centres")
    labels = ["lgmml, centres=10", "lgmml, centres=50", "gmml, centres=10", "gmml, centres=50"]
    assert [line.label for line in lines] == labels and [line.group for line in lines] == [10, 50, 10, 50]
    assert [line.x for line in lines] == [[1, 2, 10], [1, 2, 10], [], []]
    for line in lines:
        for place, metrics in enumerate(line.x or [None]):
            mean, deviation = expected(values, line.group, metrics)
            assert line.mean[place] == pytest.approx(mean, abs=1e-12)
            assert line.deviation[place] == pytest.approx(deviation, abs=1e-12)


def test_the_figure_shows_lines_bands_and_references(tmp_path):
    values = write_gaussian(tmp_path)
    figure = plot_sweep(read_runs(tmp_path), "model.metrics", "map", group="data.centres")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "model.metrics" and axes.get_ylabel() == "test map, convention default"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [line.get_label() for line in axes.lines]
    drawn = {line.get_label().partition(" ±")[0]: line for line in axes.lines}
    swept, reference = drawn["lgmml, centres=50"], drawn["gmml, centres=50"]
    assert swept.get_xdata().tolist() == [1, 2, 10] and swept.get_linestyle() == "-"
    assert swept.get_color() == reference.get_color() != drawn["lgmml, centres=10"].get_color()
    assert reference.get_linestyle() == "--"
    assert reference.get_label() == f"gmml, centres=50 ±{expected(values, 50, None)[1]:.3f}"
    assert list(reference.get_ydata()) == pytest.approx([expected(values, 50, None)[0]] * 2)
    band = axes.collections[1].get_paths()[0].vertices
    mean, deviation = expected(values, 50, 10)
    at_ten = band[band[:, 0] == 10, 1]
    assert [at_ten.min(), at_ten.max()] == pytest.approx([mean - deviation, mean + deviation])
    figure.savefig(tmp_path / "figure.png")  # draws everything


def test_one_fold_has_its_band_over_seeds_and_one_run_has_none(tmp_path):
    values = write_gaussian(tmp_path / "seeds", centres=(10,), folds=(1,), seeds=(0, 1, 2))
    line = sweep_lines(read_runs(tmp_path / "seeds"), "model.metrics", "map")[0]
    chosen = [max(values[10, 2, 1, seed, t] for t in (0.25, 0.5))[1] for seed in (0, 1, 2)]
    assert line.label == "lgmml"
    assert (line.mean[1], line.deviation[1]) == pytest.approx((np.mean(chosen), np.std(chosen, ddof=1)))
    write_gaussian(tmp_path / "one", centres=(10,), folds=(1,), seeds=(0,))
    runs = read_runs(tmp_path / "one")
    assert all(np.isnan(line.deviation).all() for line in sweep_lines(runs, "model.metrics", "map"))
    plot_sweep(runs, "model.metrics", "map").savefig(tmp_path / "figure.png")


def test_unequal_numbers_of_runs_are_told(tmp_path):
    write_gaussian(tmp_path, centres=(10,))
    runs = [run for run in read_runs(tmp_path) if (run.fold, run.settings.get("model.metrics")) != (3, 2)]
    assert sweep_lines(runs, "model.metrics", "map")[0].label == "lgmml (4 to 6 repetitions)"


def test_a_run_of_a_swept_method_without_the_option_is_its_default(tmp_path):
    for metrics in (None, 1, 5):
        settings = {} if metrics is None else {"model.metrics": metrics}
        write_run(tmp_path / str(metrics), "lgmml", value=0.5, queries={"default/map": [0.5]}, settings=settings)
    lines = sweep_lines(read_runs(tmp_path), "model.metrics", "map")
    assert [line.label for line in lines] == ["lgmml", "lgmml (default model.metrics)"]


def test_values_that_are_texts_are_an_axis_of_texts(tmp_path):
    for tau in ("median", 1.0, 0.5, True, [1, 2]):
        write_run(tmp_path / str(tau), "a", value=0.5, queries={"default/map": [0.3]}, settings={"model.tau": tau})
    runs = read_runs(tmp_path)
    assert sweep_lines(runs, "model.tau", "map")[0].x == ["0.5", "1.0", "True", "[1, 2]", "median"]
    (axes,) = plot_sweep(runs, "model.tau", "map").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "1.0", "True", "[1, 2]", "median"]


def test_seconds_and_data_sets_as_groups(tmp_path):
    for data in ("ohsumed", "mq2008"):
        for features in (10, 100):
            settings = {"model.metrics": features, "data.part": data}  # tells the data sets apart, as their names do
            write_run(tmp_path / f"{data}{features}", "lgmml", value=0.5, queries={"default/map": [0.3]},
                      settings=settings, data=data)  # fmt: skip
    runs = read_runs(tmp_path)
    lines = sweep_lines(runs, "model.metrics", "fit_seconds", group="data")
    assert [line.label for line in lines] == ["lgmml, mq2008", "lgmml, ohsumed"]
    assert [line.mean.tolist() for line in lines] == [[2.0, 2.0]] * 2
    assert plot_sweep(runs, "model.metrics", "fit_seconds", group="data").axes[0].get_ylabel() == "seconds of the fit"
    with pytest.raises(ValueError, match="the runs are on mq2008, ohsumed: set group='data'"):
        plot_sweep(runs, "model.metrics", "map")


def test_what_would_be_a_wrong_figure_is_refused(tmp_path):
    write_gaussian(tmp_path, centres=(2, 10), folds=(1,), seeds=(0,))
    runs = read_runs(tmp_path)
    with pytest.raises(ValueError, match=r"data\.centres of gaussian is 2, 10: these are different data"):
        plot_sweep(runs, "model.metrics", "map")  # validation would choose the two easy classes
    with pytest.raises(ValueError, match=r"none of 14 runs sets model\.k: they set data\.centres, model\.metrics, mod"):
        plot_sweep(runs, "model.k", "map")
    with pytest.raises(ValueError, match=r"no run has map in convention letor: choose one of map \(default\)"):
        plot_sweep(runs, "model.metrics", "map", group="data.centres", convention="letor")
    with pytest.raises(ValueError, match=r"none of 0 runs sets model\.metrics: they set nothing"):
        plot_sweep([], "model.metrics", "map")


def test_numbers_come_without_matplotlib():
    code = "import sys, torchrank.report.plots.runs; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
