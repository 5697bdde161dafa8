"""notebooks/first_comparison.py draws the means of what the runs measured."""

import json

import numpy as np

from notebooks.first_comparison import draw, main, read


def write_run(folder, name, values):
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"name": name}))
    np.savez(folder / "per_query.npz", **{"default/ndcg@10": np.array(values)})


def test_bars_are_means_and_the_best_two_are_compared(tmp_path):
    write_run(tmp_path / "runs/a", "random", [0.1, 0.2, 0.6])
    write_run(tmp_path / "runs/b", "gbdt", [0.4, 0.5, 0.6])
    write_run(tmp_path / "runs/c", "lgmml", [0.9, 0.8, 0.5])
    values = read(tmp_path / "runs")
    assert list(values) == ["lgmml", "gbdt", "random"]
    left, right = draw(values).axes
    np.testing.assert_allclose([bar.get_width() for bar in left.patches], [0.3, 0.5, 2.2 / 3])
    assert right.get_title() == "L-GMML is better on 67% of them"
    np.testing.assert_allclose(right.collections[0].get_offsets(), [[0.4, 0.9], [0.5, 0.8], [0.6, 0.5]])
    main([str(tmp_path / "runs"), "--out", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 1000
