"""Every function takes every kind of array where it takes tensors, and group or qid where it takes offsets."""

import inspect
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import torchrank
import torchrank.functional as F
from tests.laws import cases, matrix_cases
from torchrank.functional.arrays import Array, to_tensor
from torchrank.functional.ragged import ranks

SCORES, LABELS, OFFSETS = cases.batch(0)
GROUP = OFFSETS.diff()
FILLED = GROUP > 0  # a list without entries has no query id in a column
X = torch.randn(len(SCORES), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def draw(name):
    """The inputs of a function on matrices, without the wrappers of its row."""
    row = next(row for row in matrix_cases.ROWS.values() if row.function.__name__ == name)
    return row.draw(0)


def directions():
    u, v = draw("cloud_similarity")
    return [u, torch.full((len(u),), 3), v, torch.full((len(v),), 3)]


LISTS = {name: ([SCORES, LABELS], {}) for name in {row.function.__name__ for row in cases.ROWS.values()}}
LISTS |= {
    "err": ([SCORES, LABELS], {"max_label": 3}),
    "evaluate": ([SCORES, LABELS], {"measures": ["ndcg@3", "map"], "convention": "trec", "tiebreak": -LABELS}),
    "evaluate_ranks": ([3 * ranks(SCORES, OFFSETS), LABELS], {"num_documents": 40, "measures": ["ndcg@3", "map"]}),
    "knn_error": ([SCORES, LABELS], {"query_classes": torch.arange(30) % 4, "k": [1, 3]}),
    "document_ranks": ([torch.arange(len(X)), X[:30], X], {}),
    "rank_biased_overlap": ([SCORES, SCORES.flip(0)], {}),
    "pad": ([X], {}),
    "soft_ranks": ([SCORES], {}),
    "cloud_pca": ([X], {"components": 2}),
    "cloud_moments": ([X], {}),
    "cloud_gaussians": ([X], {}),
}
OTHERS = {
    name: (draw(name), {})
    for name in (
        "geometric_mean",
        "gmml",
        "gmml_factor",
        "gmml_residual",
        "pair_scatter",
        "project_psd",
        "mahalanobis",
        "gaussian_divergence",
    )
}
OTHERS |= {
    "cloud_similarity": (directions(), {}),
    "nearest_clouds": (directions(), {"k": 2}),
    "choose_components": (
        [torch.tensor([[6.0, 2.0], [5.0, 4.0]]), torch.tensor([10.0, 10.0]), torch.tensor([2, 2])],
        {},
    ),
    "search": ([X[:3], X], {"k": 2}),
    "to_offsets": ([GROUP], {}),
    "ordinal_scores": ([torch.arange(6.0).double().view(2, 3)], {}),
    "unpad": ([torch.arange(6.0).double().view(2, 3), torch.tensor([[True, True, False], [True, False, False]])], {}),
}


def frame_of(package):
    def convert(values):
        array = values.numpy()
        return package(array) if array.ndim == 2 else array

    return convert


def column_of(package):
    return lambda values: package(values.numpy()) if values.ndim == 1 else values.numpy()


KINDS = {
    "numpy": torch.Tensor.numpy,
    "list": torch.Tensor.tolist,
    "tuple": lambda values: tuple(values.tolist()),
    "pandas": column_of(pd.Series),
    "polars": column_of(pl.Series),
    "arrow": column_of(pa.array),
    "nullable": column_of(lambda array: pd.Series(array).convert_dtypes()),
    "object": lambda values: values.numpy().astype(object),
    "big-endian": lambda values: values.numpy().astype(values.numpy().dtype.newbyteorder(">")),
    "pandas frame": frame_of(pd.DataFrame),
    "polars frame": frame_of(pl.DataFrame),
    "one column": lambda values: pd.DataFrame({"a": values.numpy()}) if values.ndim == 1 else values.numpy(),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def convert(kind, values):
    return KINDS[kind](values) if isinstance(values, torch.Tensor) else values


def takes_tensors(function):
    known = inspect.isfunction(function) and inspect.signature(function).parameters.values()
    return known and any(parameter.annotation == Array for parameter in known)


def test_every_function_has_a_case():
    functions = {name: each for name, each in vars(F).items() if name in F.__all__ and takes_tensors(each)}
    assert functions.keys() == LISTS.keys() | OTHERS.keys()
    on_lists = {name for name, each in functions.items() if "offsets" in inspect.signature(each).parameters}
    assert on_lists == LISTS.keys()


@every_kind
@pytest.mark.parametrize("name", sorted(LISTS))
def test_functions_on_lists(name, kind):
    function, (given, options) = vars(F)[name], LISTS[name]
    expected = function(*given, offsets=OFFSETS, **options)
    arrays, others = (
        [convert(kind, each) for each in given],
        {key: convert(kind, each) for key, each in options.items()},
    )
    same(function(*arrays, offsets=convert(kind, OFFSETS), **others), expected)
    same(function(*arrays, group=convert(kind, GROUP), **others), expected)


@pytest.mark.parametrize("name", sorted(LISTS))
def test_a_column_of_query_ids(name):
    function, (given, options) = vars(F)[name], LISTS[name]
    bounds = torch.nn.functional.pad(GROUP[FILLED].cumsum(0), (1, 0))
    if "query_classes" in options:
        options = options | {"query_classes": options["query_classes"][FILLED]}
    if name == "document_ranks":
        given = [given[0], given[1][FILLED], given[2]]
    numbers = torch.arange(30)[FILLED].flip(0).repeat_interleave(GROUP[FILLED])
    expected = function(*given, offsets=bounds, **options)
    words = [f"q{number}" for number in numbers.tolist()]
    columns = [numbers, numbers.numpy(), numbers.double().numpy(), words, np.array(words), pa.array(words)]
    columns += [pd.Series(words), pd.Series(words, dtype="category"), pd.DataFrame({"q": words}), pl.Series(words)]
    for qid in columns:
        same(function(*given, qid=qid, **options), expected)


@every_kind
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_functions_on_matrices(name, kind):
    function, (given, options) = vars(F)[name], OTHERS[name]
    same(function(*(convert(kind, each) for each in given), **options), function(*given, **options))


@pytest.mark.parametrize("name", sorted(LISTS))
def test_signatures_and_docstrings_name_group_and_qid(name):
    function = vars(F)[name]
    parameters = inspect.signature(function).parameters
    assert parameters["group"].default is None and parameters["qid"].kind == inspect.Parameter.KEYWORD_ONLY
    assert "    group: " in function.__doc__ and "    qid: " in function.__doc__


def test_the_dtype_of_scores_is_kept():
    results = {"f2": "float32", "f4": "float32", "f8": "float64", "g": "float64", "i1": "float32", "?": "float32"}
    for dtype, expected in results.items():
        found = F.ndcg(np.array([1, 0, 1], dtype=dtype), np.array([1, 1, 0], dtype="i1"), group=[3])
        assert found.dtype == getattr(torch, expected), dtype
    assert F.ndcg([0.5, 0.25], [1, 0], [0, 2]).dtype == torch.float64  # Python floats have 53 bits


def test_labels_of_any_dtype():
    expected = F.ndcg(SCORES, LABELS, OFFSETS, k=5)
    for dtype in ("i1", "u1", "i2", "u2", "u4", "u8", ">i4", "f2", ">f8", "g", object):
        same(F.ndcg(SCORES, LABELS.numpy().astype(dtype), OFFSETS, k=5), expected)
    binary = (LABELS > 1).numpy()
    for each in (binary, torch.from_numpy(binary)):
        same(F.listnet_loss(SCORES, each, OFFSETS), F.listnet_loss(SCORES, (LABELS > 1).long(), OFFSETS))
    same(F.listnet_loss(SCORES, binary, OFFSETS), F.listnet_loss(SCORES, (LABELS > 1).long(), OFFSETS))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.arange(6.0)[::-2], [5.0, 3, 1]),
        (np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i1"), ("b", "f8")])["b"], [2.5, 4.5]),
        (np.broadcast_to(np.float32(2), 3), [2.0, 2, 2]),
        (np.ma.array([1, 2], mask=[False, True]), [1.0, np.nan]),
        (pd.Series([1, None, 3], dtype="Int8"), [1.0, np.nan, 3]),
        (pd.Series([1.5, None], dtype="float32[pyarrow]"), [1.5, np.nan]),
        (pl.Series([1, None]), [1.0, np.nan]),
        (pa.array([1, None]), [1.0, np.nan]),
        ([1, None, 2.5], [1.0, np.nan, 2.5]),
        (range(3), [0, 1, 2]),
        ([np.float32(0.5), Decimal("0.25"), True], [0.5, 0.25, 1]),
        ([np.array([1, 2]), np.array([3.5, 4])], [[1.0, 2], [3.5, 4]]),
        ([torch.tensor(1.5), torch.tensor(2.5)], [1.5, 2.5]),
        ([], []),
        ([[], []], [[], []]),
        (pd.DataFrame({"a": [1, 2], "b": [True, False]}).convert_dtypes(), [[1, 1], [2, 0]]),
        (pd.DataFrame({"a": [1, 2], "b": pd.array([1, None], dtype="Int64")}), [[1, 1], [2, np.nan]]),
        (pl.DataFrame({"a": [1, 2], "b": [0.5, None]}), [[1, 0.5], [2, np.nan]]),
        (pa.table({"a": [1, 2], "b": [0.5, 1.5]}), [[1, 0.5], [2, 1.5]]),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), [[1, 2]]),
        (pd.DataFrame(index=range(2)), [[], []]),
    ],
)  # fmt: skip
def test_odd_arrays(values, expected):
    found = to_tensor(values, "x")
    np.testing.assert_array_equal(found.numpy(), np.array(expected))


def test_read_only_arrays_are_shared_without_a_warning():
    array = np.arange(3.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_tensor(array, "x").data_ptr() == array.ctypes.data


REFUSED = [
    ({"labels": ["a", "b", "c"]}, "labels must hold numbers, got the string 'a' at position 0"),
    ({"labels": np.array(["a", "b", "c"])}, "labels must hold numbers, got an array of str"),
    ({"scores": np.zeros(3, complex)}, "scores must hold numbers, got an array of complex128"),
    ({"scores": np.zeros(3, "M8[s]")}, "scores must hold numbers, got an array of datetime64"),
    ({"scores": [[0.5, 1.0], [2.0]]}, "rows of scores have different lengths, 2 and 1: give .* group"),
    ({"scores": [[0.5, 1.0], 2.0]}, "rows of scores have different lengths, 2 and none"),
    ({"scores": [0.5, [1.0], 2]}, r"scores must hold numbers, got a list \[1.0\] at position 1"),
    ({"scores": [[0.5, 1.0, 2.0]]}, r"scores must be a vector, .* got shape \(1, 3\)"),
    ({"scores": None}, "scores is a NoneType: give"),
    ({"labels": None}, "labels is a NoneType: give"),
    ({"scores": 5.0}, "scores is a float: give a tensor, a numpy array"),
    ({"scores": "abc"}, "scores is a str: give a tensor"),
    ({"scores": {"a": 1}}, "scores is a dict: give a tensor"),
    ({"scores": (x for x in [1])}, "scores is a generator: give a tensor"),
    ({"labels": np.array([0, 1, 2**63], dtype="u8")}, "labels must hold integers below 2..63"),
    ({"labels": [0, 1, 2**70]}, "labels holds an integer that needs more than 64 bits"),
    ({"labels": pd.DataFrame({"a": [0, 0, 1], "b": 0})}, "labels is a data frame with 2 columns: give one"),
    ({"labels": pd.Series([0, None, 1], dtype="Int64")}, "1 of 3 labels are NaN"),
    ({"group": [3], "offsets": [0, 3]}, "one of offsets.* got offsets and group"),
    ({"group": [3], "qid": [0, 0, 0]}, "one of offsets.* got group and qid"),
    ({}, "one of offsets=.*, group=.* and qid=.*, got none of them"),
    ({"group": [2, 2]}, "the sizes in group sum to 4, but scores has 3"),
    ({"group": [4, -1]}, "group must hold sizes of lists, 0 or more, got -1"),
    ({"group": [1.5, 1.5]}, "group must be a vector of integers, got float64"),
    ({"group": 3}, "group is an int: give"),
    ({"offsets": [0.0, 3.0]}, "offsets must be a vector of integers, got float64"),
    ({"offsets": [0, 2]}, "offsets must rise from 0 to N = 3"),
    ({"qid": ["a", "b", "a"]}, "rows of query 'a' are not together in qid: sort the rows by query"),
    ({"qid": np.array([1, 2, 1])}, "rows of query 1 are not together in qid: sort the rows by query"),
    ({"qid": [1, 1]}, "qid has 2 rows, but scores has 3"),
    ({"qid": ["a", None, "b"]}, "qid is missing in row 1"),
    ({"qid": pd.Series(["a", None, "b"], dtype="string")}, "qid is missing in row 1"),
    ({"qid": np.array([1.0, 2.0, np.nan])}, "qid is missing in row 2"),
    ({"qid": "abc"}, "qid is a str: give a column with the query id of each row"),
    ({"qid": 7}, "qid is an int: give a column"),
    ({"qid": [[1], [1], [2]]}, r"qid must hold one id per row, got \[1\] in row 0"),
    ({"qid": np.zeros((3, 2))}, "qid must be a vector"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_wrong_input_is_refused_in_one_line(wrong, message):
    given = {"scores": [0.5, 1.0, 2.0], "labels": [0, 1, 2]} | wrong
    if not {"offsets", "group", "qid"} & wrong.keys() and wrong:
        given["group"] = [3]
    with pytest.raises(ValueError, match=message) as caught:
        F.ndcg(**given)
    assert "\n" not in str(caught.value)


def test_the_column_that_holds_no_numbers_is_named():
    for frame in (
        pd.DataFrame({"a": [1.0, 2], "title": ["x", "y"]}),
        pl.DataFrame({"a": [1.0, 2], "title": ["x", "y"]}),
    ):
        with pytest.raises(torchrank.DataError, match="column 'title' of x must hold numbers, got the string 'x'"):
            F.cloud_moments(frame, group=[2])


def test_wrong_calls_are_type_errors_of_the_function():
    for arguments, options in [(([1.0], [1], [0, 1], 5), {}), (([1.0], [1]), {"labels": [1], "group": [1]}),
                               (([1.0],), {"group": [1]}), (([1.0], [1]), {"group": [1], "unknown": 2})]:  # fmt: skip
        with pytest.raises(TypeError, match=r"ndcg\(\)"):
            F.ndcg(*arguments, **options)
    with pytest.raises(TypeError, match="group"):
        F.gmml(torch.eye(2), torch.eye(2), group=[1])


def test_arrays_go_to_the_device_of_the_tensors():
    found = F.ndcg(torch.zeros(3, device="meta"), [0, 1, 2], group=[3])
    assert found.device.type == "meta"


def test_gradients_flow_to_tensors_beside_arrays():
    scores = SCORES.clone().requires_grad_()
    F.listnet_loss(scores, LABELS.numpy(), group=GROUP.tolist()).sum().backward()
    assert scores.grad.abs().sum() > 0


def test_compiled_with_and_without_keywords():
    compiled = torch.compile(F.listnet_loss, backend="eager")
    same(compiled(SCORES, labels=LABELS, offsets=OFFSETS), F.listnet_loss(SCORES, LABELS, OFFSETS))


@every_kind
def test_judged_documents_as_arrays(kind):
    labels = torch.cat([LABELS, torch.tensor([3, 0])])
    bounds = OFFSETS.clone()
    bounds[-1] += 2
    for options in ({"judged": (labels, bounds)}, {"num_relevant": GROUP}):
        measure = F.ndcg if "judged" in options else F.average_precision
        expected = measure(SCORES, LABELS, OFFSETS, **options)
        given = {
            key: tuple(convert("numpy" if kind == "one column" else kind, each) for each in value)
            if key == "judged"
            else convert(kind, value)
            for key, value in options.items()
        }
        same(measure(SCORES, LABELS, OFFSETS, **given), expected)
