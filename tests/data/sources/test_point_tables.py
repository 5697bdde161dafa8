"""Tables of points: columns, headers, separators, classes and the place of what is wrong."""

import numpy as np
import pytest

from torchrank.data.sources.point_tables import read_points
from torchrank.data.sources.points import load_points
from torchrank.errors import DataError

CSV = {
    "first": "red,1,2\nblue,3,4\nred,5,6.5\n",
    "last": "1,2,red\r\n3,4,blue\r\n5,6.5,red\r\n",
    "kind": "a,kind,b\n1,red,2\n3,blue,4\n5,red,6.5\n",
}


@pytest.mark.parametrize("label", CSV)
def test_csv_columns(tmp_path, label):
    (tmp_path / "points.csv").write_text(CSV[label], newline="")
    x, classes = read_points(tmp_path / "points.csv", label=label)
    assert x.tolist() == [[1, 2], [3, 4], [5, 6.5]] and classes.tolist() == ["red", "blue", "red"]


def test_csv_headers_separators_and_blank_lines(tmp_path):
    for name, text in {
        "header.csv": "a,b,kind\n1,2,7\n3,4,8\n5,6,7\n",
        "tabs.tsv": "1\t2\t7\n3\t4\t8\n5\t6\t7\n",
        "spaced.csv": "1, 2, 7\n\n3, 4, 8\n5, 6, 7\n\n",
        "semicolons.csv": "1;2;7\n3;4;8\n5;6;7",
        "spaces.data": "1 2 7\n3 4 8\n5 6 7",
        "mark.csv": "\ufeff1,2,7\n3,4,8\n5,6,7\n",
        "quoted.csv": '"width, in cm",b,"kind"\n1,2,"7"\n3,4,8\n5,6,7\n',
        "quoted_semicolons.csv": '"width, in cm";b;kind\n1;2;7\n3;4;8\n5;6;7\n',
    }.items():
        (tmp_path / name).write_text(text)
        x, classes = read_points(tmp_path / name)
        assert x.tolist() == [[1, 2], [3, 4], [5, 6]] and classes.tolist() == ["7", "8", "7"], name
    (tmp_path / "quoted.csv").write_text('"red, dark",1,2\n"red, dark",3,4\n')
    assert read_points(tmp_path / "quoted.csv", label="first")[1].tolist() == ["red, dark"] * 2
    (tmp_path / "mark.csv").write_text("\ufeffkind,a\nred,1\n")
    assert read_points(tmp_path / "mark.csv", label="kind")[1].tolist() == ["red"]


@pytest.mark.parametrize("first", ["0,1,2", "150,4,virginica", "1960,1970,kind", "5,6,new"])
def test_a_first_line_that_may_be_a_header_needs_the_option(tmp_path, first):
    path = tmp_path / "points.csv"
    path.write_text(f"{first}\n1,2,a\n3,4,b\n5,6,a\n")
    told = rf"{path}: no other line has the class .* set data.header=true or data.header=false"
    with pytest.raises(DataError, match=told):
        load_points("points.csv", root=tmp_path)
    assert len(read_points(path, header=True)[0]) == 3 and len(read_points(path, header=False)[0]) == 4
    sets = load_points("points.csv", root=tmp_path, header=True, val_fraction=0, test_fraction=0)
    assert sets["train"].relevance.class_names == ("a", "b")


def test_headers_that_contradict_the_cells(tmp_path):
    path = tmp_path / "points.csv"
    for text, options, message in (
        ("?,?,red\n1,2,red\n", {}, r"line 1: feature 1 is '\?'.*data.header=true if"),
        ("a,b,kind\n1,2,red\n", {"header": False}, "line 1: feature 1 is 'a'"),
        (
            "a,b,kind\n1,2,red\n",
            {"label": "kind", "header": False},
            "data.label must be .*, got 'kind', but data.header=false",
        ),
        (
            "a,b,kind\n1,2,red\n",
            {"label": "colour"},
            r"got 'colour', but the columns of line 1 are \['a', 'b', 'kind'\]",
        ),
        ("a,b,kind\n", {}, "no points below the header"),
        ("red\nblue\nred\n", {}, "no comma, tab, semicolon or space"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_points(path, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,red\n\n3,?,red\n", r"line 3: feature 2 is '\?'"),
        ("?,2,red\n3,4,red\n", r"line 1: feature 1 is '\?'"),
        ("a,b,kind\n1,x,red\n", r"line 2: feature 2 is 'x'"),
        ("\n \n1,2,red\n3,x,red\n", "line 4: feature 2 is 'x'"),
        ("1,2,red\n3,4\n", r"line 2: the class \(column 3 of 3\) is missing"),
        ("1,2,red\n3,4,blue,5\n", "equally long lines separated by ',': line 2 has 4 cells, not 3"),
        ("\n \n1,2,red\n3,4,blue\n3,4,blue,5\n", "line 5 has 4 cells, not 3"),
        (f"1,2,red\n3,{'4' * 200_000},blue,5\n", "equally long lines"),
        (
            "red,1,2\nred,1,1.5\nblue,2,2\n",
            r"line 2: 1.5 \(column 3 of 3\) is not a class, .*: set data.label to first",
        ),
        ("1,2,red\n2,nan,red\n", "line 2: feature 2 is 'nan', expected a finite number"),
        ("1,2,red\n,3,red\n", "line 2: feature 1 is missing, expected a finite number"),
        ("", "one point per line"),
        (",,\n,,\n", "the file is empty"),
    ],
)
def test_bad_csv_is_located(tmp_path, text, message):
    (tmp_path / "points.csv").write_text(text)
    with pytest.raises(DataError, match=rf"^{tmp_path}/points.csv.*{message}"):
        read_points(tmp_path / "points.csv")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.eye(6)[:, :2], r"shape \(6, 2\).*argmax"),
        (np.ones((3, 2)), r"shape \(3, 2\)"),
        (np.ones((1, 6)), r"shape \(1, 6\)"),
        ([0, 1, 2, np.nan, 1, 1], "class nan of point 4"),
        ([0, 1, 2, 1, -np.inf, 1], "class -inf of point 5"),
        (np.ones(6, complex), "complex128"),
    ],
)
def test_classes_are_one_finite_number_or_text_for_each_point(tmp_path, y, message):
    np.savez(tmp_path / "points.npz", x=np.eye(6), y=y)
    with pytest.raises(DataError, match=message):
        read_points(tmp_path / "points.npz")
    np.savez(tmp_path / "POINTS.NPZ.npz", x=np.eye(6), y=np.arange(6.0)[:, None])
    (tmp_path / "POINTS.NPZ.npz").rename(tmp_path / "POINTS.NPZ")
    assert read_points(tmp_path / "POINTS.NPZ")[1].tolist() == [0, 1, 2, 3, 4, 5]


def test_vectors_of_a_mat_file_are_rows_or_columns(tmp_path):
    from scipy.io import savemat

    for kind in ("row", "column"):
        savemat(tmp_path / "points.mat", {"fea": np.eye(3), "gnd": np.array([1, 2, 1])}, oned_as=kind)
        assert read_points(tmp_path / "points.mat")[1].tolist() == [1, 2, 1]
