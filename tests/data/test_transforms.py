"""Transforms against numpy and scikit-learn, on awkward columns, in chunks, through state dicts and on meta."""

import itertools
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

from torchrank.data import RankingSet, SparseRows, make_transform
from torchrank.data.transforms import TRANSFORMS, Identity, transform_rows
from torchrank.errors import DataError, NotFittedError

OFFSETS = torch.tensor([0, 40, 40, 41, 150, 200])
ALL = torch.tensor([0, 200])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def awkward_rows(huge: float = 1e30) -> torch.Tensor:
    """200 rows: normal, huge, constant, mostly zero, offset by a million, two values, constant zero."""
    random = np.random.default_rng(0)
    x = random.standard_normal((200, 7))
    x[:, 1] *= huge
    x[:, 2] = 7.3
    x[:, 3] = np.maximum(x[:, 3] - 1, 0)
    x[:, 4] += 1e6
    x[:, 5] = x[:, 5] > 0
    x[:, 6] = 0.0
    return torch.from_numpy(x)


def rows_for(option, huge: float = 1e30) -> torch.Tensor:
    """Awkward rows that the transform takes: singhal takes counts only."""
    return awkward_rows(huge).abs().ceil() if option == "singhal" else awkward_rows(huge)


def fitted(option, x=None, offsets=OFFSETS):
    x = rows_for(option) if x is None else x
    return make_transform(option, x.shape[1]).fit(x, offsets)


@pytest.mark.peers
def test_standard_is_scikit_learns_scaler_clipped():
    from sklearn.preprocessing import StandardScaler

    x = awkward_rows()
    x[0, 0], x[1, 3] = 100.0, -1e4
    expected = StandardScaler().fit_transform(x.numpy()).clip(-8, 8)
    result = fitted("standard", x)(x, OFFSETS)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-9, atol=1e-9)
    assert result[0, 0] == 8 and result[1, 3] == -8
    assert (result[:, 2] == 0).all() and (result[:, 6] == 0).all()


def test_standard_keeps_its_digits_beside_a_large_mean():
    x = torch.tensor([[1e9], [1e9 + 1], [1e9 + 2]], dtype=torch.float64)
    expected = np.array([-1, 0, 1]) * np.sqrt(1.5)
    np.testing.assert_allclose(fitted("standard", x, None)(x, ALL)[:, 0].numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_constant_column_is_exactly_zero_whatever_the_constant():
    x = torch.full((9_999, 1), 0.1, dtype=torch.float32)  # its float64 mean by summation is not 0.1
    assert (fitted("standard", x, None)(x, ALL) == 0).all()
    assert fitted("standard", x, None)(x + 1, ALL).max() <= 8  # divided by 1, not by a rounding error
    assert fitted("standard", x, None).deviation.item() == 1


def test_query_minmax_list_by_list():
    x = awkward_rows()
    result = fitted("query_minmax", x)(x, OFFSETS).numpy()
    for start, stop in itertools.pairwise(OFFSETS.tolist()):
        part = x[start:stop].numpy()
        if len(part):
            low, spread = part.min(0), np.ptp(part, 0)
            expected = np.where(spread > 0, (part - low) / np.where(spread > 0, spread, 1), 0)
            np.testing.assert_allclose(result[start:stop], expected, rtol=1e-12)
    assert (result[40:41] == 0).all()


def test_query_minmax_of_the_largest_numbers_is_finite():
    x = torch.tensor([[-3e38], [0.0], [3e38]])
    assert make_transform("query_minmax", 1)(x, torch.tensor([0, 3]))[:, 0].tolist() == [0, 0.5, 1]


def test_l2_divides_by_the_column_norm_of_the_training_rows():
    x, other = awkward_rows(), torch.randn(5, 7, dtype=torch.float64)
    norm = np.linalg.norm(x.numpy(), axis=0)
    expected = other.numpy() / np.where(norm > 0, norm, 1)
    np.testing.assert_allclose(fitted("l2", x)(other, ALL).numpy(), expected, rtol=1e-12)


def test_log1p():
    x = awkward_rows()
    expected = np.sign(x.numpy()) * np.log1p(np.abs(x.numpy()))
    np.testing.assert_allclose(fitted("log1p", x)(x, OFFSETS).numpy(), expected, rtol=1e-12)


TRAINING = ["a a b c c c c", "a d d", "", "b b b c a e", "a a a f f c"]  # e occurs once
UNSEEN = ["c c g a", "e g", "d d d d d f b b a"]


def count(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[float(text.split().count(word)) for word in "abcdefg"] for text in texts])


def pivoted(texts: list[str], slope: float, min_count: int) -> np.ndarray:
    """Singhal's weights as they are written in the paper, word by word."""
    vocabulary = [word for word in "abcdefg" if " ".join(TRAINING).split().count(word) >= min_count]
    different = lambda text: {word for word in text.split() if word in vocabulary}  # noqa: E731
    pivot = np.mean([len(different(text)) for text in TRAINING])
    x = np.zeros((len(texts), 7))
    for row, text in enumerate(texts):
        words = different(text)
        for word in words:
            mean = sum(text.split().count(other) for other in words) / len(words)
            weight = np.log(len(TRAINING) / sum(word in other.split() for other in TRAINING))
            weight *= (1 + np.log(text.split().count(word))) / (1 + np.log(mean))
            x[row, "abcdefg".index(word)] = weight / ((1 - slope) + slope * len(words) / pivot)
    return x


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("min_count", [1, 2, 4])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("elements", [2**20, 8])
def test_singhal_word_by_word(slope, min_count, sparse, elements, monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", elements)
    rows = (lambda texts: SparseRows.from_dense(count(texts).double())) if sparse else lambda t: count(t).double()
    transform = fitted({"name": "singhal", "slope": slope, "min_count": min_count}, rows(TRAINING), None)
    for texts in (TRAINING, UNSEEN):
        result = transform(rows(texts), ALL)
        result = result.dense() if sparse else result
        np.testing.assert_allclose(result.numpy(), pivoted(texts, slope, min_count), rtol=1e-12, atol=1e-15)


def test_singhal_is_the_default_of_the_specification_and_survives_its_state_dict():
    rows = SparseRows.from_dense(count(TRAINING))
    transform, other = fitted("singhal", rows, None), make_transform("singhal", 7)
    other.load_state_dict(transform.state_dict())
    result = other(SparseRows.from_dense(count(UNSEEN)), ALL)
    assert isinstance(result, SparseRows) and result.dtype == torch.float32
    np.testing.assert_allclose(result.dense().numpy(), pivoted(UNSEEN, 0.3, 2), rtol=1e-6, atol=1e-7)


def test_singhal_runs_on_meta():
    transform = fitted("singhal", count(TRAINING), None).to("meta")
    assert transform(count(UNSEEN).to("meta"), ALL).shape == (3, 7)
    assert transform(SparseRows.from_dense(count(UNSEEN)).to("meta"), ALL).shape == (3, 7)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("wrong", [-1.0, 0.25])
def test_singhal_refuses_what_is_no_count(sparse, wrong):
    x = count(TRAINING)
    x[3, 4] = wrong
    with pytest.raises(DataError, match=rf"feature 4 .* holds {wrong:g}, but singhal takes counts .*transform=none"):
        fitted("singhal", SparseRows.from_dense(x) if sparse else x, None)
    with pytest.raises(DataError, match="no word occurs 9 times in 5 documents"):
        fitted({"name": "singhal", "min_count": 9}, count(TRAINING), None)


def normal_scores(train: np.ndarray) -> np.ndarray:
    """Mid-rank of each training value, as the value of the normal distribution with that share below it."""
    shares = [(np.mean(train < value) + np.mean(train <= value)) / 2 for value in train]
    return np.array([NormalDist().inv_cdf(share) for share in shares])


def test_quantile_gives_training_values_their_normal_scores():
    x = awkward_rows()
    result = fitted("quantile", x)(x, OFFSETS).numpy()
    for column in range(7):
        np.testing.assert_allclose(result[:, column], normal_scores(x[:, column].numpy()), rtol=1e-9, atol=1e-9)


def test_quantile_of_new_values_is_monotone_finite_and_linear_between_training_values():
    transform = fitted("quantile", torch.tensor([[0.0], [0.0], [1.0], [3.0]]), None)
    new = torch.tensor([[-1e38], [0.0], [0.25], [1.0], [2.0], [3.0], [3e38]])
    result = transform(new, ALL)[:, 0].double().numpy()
    zero, one, three = (NormalDist().inv_cdf(share) for share in (1 / 4, 5 / 8, 7 / 8))
    expected = [zero, zero, 0.75 * zero + 0.25 * one, one, (one + three) / 2, three, three]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_quantile_of_many_rows_is_close_to_the_exact_one_and_seeded():
    x = torch.randn(30_000, 2, generator=torch.Generator().manual_seed(0)).exp()
    x[:9_000, 1] = 0
    torch.manual_seed(1)
    one = make_transform("quantile", 2).fit(x, None)
    torch.manual_seed(2)  # has no say
    assert torch.equal(one.nodes, make_transform("quantile", 2).fit(x, None).nodes)
    result = one(x, ALL)
    assert len(result[:9_000, 1].unique()) == 1
    shares = torch.special.ndtr(result[:, 0].double())
    exact = (x[:, 0].argsort().argsort() + 0.5) / len(x)
    assert (shares - exact).abs().max() < 0.03


@pytest.mark.parametrize("variance", [0.3, 0.8, 0.95, 1.0])
def test_pca_is_the_svd_of_the_centred_rows(variance):
    random = np.random.default_rng(1)
    x = random.standard_normal((80, 6)) @ random.standard_normal((6, 6)) + 100
    centred = x - x.mean(0)
    _, singular, vectors = np.linalg.svd(centred, full_matrices=False)
    shares = np.cumsum(singular**2) / np.sum(singular**2)
    kept = int(np.flatnonzero(shares >= variance - 1e-9)[0]) + 1
    transform = fitted({"name": "pca", "variance": variance}, torch.from_numpy(x), None)
    assert transform.num_outputs == kept
    result = transform(torch.from_numpy(x), ALL).numpy()
    np.testing.assert_allclose(np.abs(result), np.abs(centred @ vectors[:kept].T), rtol=1e-8, atol=1e-8)
    largest = np.abs(transform.components.numpy()).argmax(0)
    assert (transform.components.numpy()[largest, range(kept)] > 0).all()


def test_pca_of_rows_without_variance_keeps_one_component():
    x = torch.full((4, 3), 2.0)
    assert fitted("pca", x, None)(x, ALL).tolist() == [[0.0]] * 4


def test_quadratic_has_all_products_once():
    x = torch.randn(5, 4, dtype=torch.float64)
    transform = make_transform("quadratic", 4)
    pairs = list(itertools.combinations(range(4), 2))
    columns = [x[:, i] for i in range(4)] + [x[:, i] * x[:, j] for i, j in pairs] + [x[:, i] ** 2 for i in range(4)]
    assert transform.num_outputs == len(columns) == 14
    assert torch.equal(transform(x, ALL), torch.stack(columns, 1))
    with pytest.raises(DataError, match="overflows float32"):
        make_transform("quadratic", 1).fit(torch.tensor([[1e20]]))
    assert make_transform("quadratic", 445).num_outputs == 445 * 444 // 2 + 2 * 445
    with pytest.raises(ValueError, match="100,127 features of 446, more than 100,000: select features first"):
        make_transform("quadratic", 446)


def test_chain_fits_each_step_on_what_comes_before():
    x = awkward_rows(huge=1e3)
    chain = fitted(["query_minmax", "standard", {"name": "pca", "variance": 0.9}], x)
    assert chain.per_query
    step = fitted("query_minmax", x)(x, OFFSETS)
    step = fitted("standard", step)(step, OFFSETS)
    expected = fitted({"name": "pca", "variance": 0.9}, step)(step, OFFSETS)
    np.testing.assert_allclose(chain(x, OFFSETS).numpy(), expected.numpy(), atol=1e-10)
    assert chain.num_outputs == expected.shape[1]


CHAINS = [["log1p", "standard"], ["log1p", "query_minmax", "quantile"], ["standard", "quadratic"], ["log1p", "l2"]]


@pytest.mark.parametrize("option", [*(name for name in TRANSFORMS if name != "quadratic"), *CHAINS], ids=str)
def test_resident_streamed_and_single_lists_agree_bit_for_bit(option, monkeypatch):
    """A column such as 1.6e9 + 128 k has 3 values left when its logarithms are rounded to float32 between steps."""
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 300)
    x = rows_for(option, huge=1e3).float()
    x[:, 4] = 1.6e9 + 128 * (torch.arange(200) % 50)
    lists = RankingSet(x, torch.zeros(200), OFFSETS)
    transform = fitted(option, x)
    resident = lists.to("cpu", transform).x
    assert resident.dtype == torch.float32 and torch.equal(resident, transform(x, OFFSETS))
    for q in range(len(lists)):
        one = lists[q]
        assert torch.equal(transform(one.x, one.offsets), resident[OFFSETS[q] : OFFSETS[q + 1]])


def test_a_chain_does_not_round_between_its_steps():
    x = (1.6e9 + 128 * torch.arange(50.0))[:, None]
    chain = fitted(["log1p", "standard"], x, None)
    logs = np.log1p(x.double().numpy())
    expected = (logs - logs.mean()) / logs.std()
    np.testing.assert_allclose(chain(x, torch.tensor([0, 50])).numpy(), expected, rtol=1e-5, atol=1e-6)
    rows = fitted(["log1p", "l2"], SparseRows.from_dense(x), None)(SparseRows.from_dense(x), torch.tensor([0, 50]))
    assert rows.dtype == torch.float32
    assert np.array_equal(rows.values.numpy(), (logs / np.linalg.norm(logs)).astype(np.float32)[:, 0])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("option", ["standard", "l2", "pca", ["none", "standard"]], ids=str)
@pytest.mark.parametrize("sentinel", [3.4e38, -3.4e38])
def test_a_sentinel_in_a_training_column_is_refused(option, sparse, sentinel, monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 100)
    x = awkward_rows().float()
    x[150, 3] = sentinel
    if sparse and option != "l2":
        return
    with pytest.raises(DataError, match=r"feature 3 \(counted from 0\) .*3\.4e\+38.*data\.sentinel=0"):
        fitted(option, SparseRows.from_dense(x) if sparse else x)


@pytest.mark.parametrize("option", ["quantile", "log1p", ["log1p", "standard"], ["quantile", "pca"]], ids=str)
def test_transforms_that_bear_a_sentinel_take_it(option):
    x = awkward_rows().float()
    x[150, 3] = 3.4e38
    assert fitted(option, x)(x, OFFSETS).isfinite().all()


OPTIONS = [name for name in TRANSFORMS if name != "quadratic"] + [["standard", "quadratic"], ["log1p", "pca"]]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_fit_does_not_depend_on_the_chunks(option, monkeypatch):
    x = rows_for(option, huge=1e5)
    whole = fitted(option, x)
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 100)
    parts = fitted(option, x)
    assert whole.num_outputs == parts.num_outputs
    np.testing.assert_allclose(whole(x, OFFSETS).numpy(), parts(x, OFFSETS).numpy(), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_transform_is_finite_on_awkward_rows_and_keeps_the_dtype(option, dtype):
    x = rows_for(option).to(dtype)
    result = fitted(option, x)(x, OFFSETS)
    assert result.isfinite().all() and result.dtype == dtype


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_state_dict_round_trip(option, tmp_path):
    x = rows_for(option, huge=1e3)
    transform = fitted(option, x)
    torch.save(transform.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh, used = make_transform(option, 7), fitted(option, rows_for(option, huge=1.0))  # of another size, perhaps
    for other in (fresh, used, nn.ModuleDict({"transform": make_transform(option, 7)})):
        inside = isinstance(other, nn.ModuleDict)
        other.load_state_dict({f"transform.{name}": part for name, part in saved.items()} if inside else saved)
        again = other["transform"] if inside else other
        assert torch.equal(again(x, OFFSETS), transform(x, OFFSETS)) and again.num_outputs == transform.num_outputs


def test_an_unfitted_transform_stays_unfitted_when_it_is_saved():
    other = fitted("standard")
    other.load_state_dict(make_transform("standard", 7).state_dict())
    with pytest.raises(NotFittedError):
        other(awkward_rows(), OFFSETS)


@pytest.mark.parametrize("option", ["standard", "pca", ["log1p", "quantile"]], ids=str)
def test_a_transform_can_be_fitted_again_on_other_rows(option):
    x = awkward_rows(huge=1e3)
    again = fitted(option, x[:20] ** 3, None).fit(x, OFFSETS)
    assert torch.equal(again(x, OFFSETS), fitted(option, x)(x, OFFSETS))


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_forward_runs_on_meta_so_it_never_synchronises(option):
    transform = fitted(option).to("meta")
    result = transform(torch.empty(200, 7, device="meta"), OFFSETS.to("meta"))
    assert result.shape == (200, transform.num_outputs) and result.device.type == "meta"


@pytest.mark.parametrize("option", ["none", "l2", "log1p", ["log1p", "l2"]], ids=str)
def test_sparse_rows_stay_sparse_and_agree_with_dense_ones(option, monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 100)
    x = awkward_rows(huge=10).relu()
    rows = SparseRows.from_dense(x)
    dense, sparse = fitted(option, x), fitted(option, rows)
    result = sparse(rows, OFFSETS)
    assert isinstance(result, SparseRows)
    np.testing.assert_allclose(result.dense().numpy(), dense(x, OFFSETS).numpy(), rtol=1e-12)


@pytest.mark.parametrize("option", ["standard", "query_minmax", "quantile", "pca", "quadratic", ["l2", "pca"]], ids=str)
def test_the_others_refuse_sparse_rows_with_the_reason(option):
    rows = SparseRows.from_dense(torch.eye(4))
    with pytest.raises(DataError, match=r"cannot take sparse rows: .*data\.sparse=false"):
        make_transform(option, 4).fit(rows)


@pytest.mark.parametrize("option", list(TRANSFORMS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_with_their_place(option, bad, monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 100)
    x = rows_for(option, huge=1.0)
    x[123, 3] = bad
    with pytest.raises(DataError, match=rf"feature 3 .* of row 123 is {bad}"):
        fitted(option, x)


def test_nan_in_sparse_rows_is_refused_with_its_place():
    x = torch.eye(4)
    x[2, 2] = torch.nan
    with pytest.raises(DataError, match=r"feature 2 .* of row 2 is nan"):
        make_transform("l2", 4).fit(SparseRows.from_dense(x))


def test_unfitted_transforms_are_refused_and_those_without_state_are_ready():
    x = torch.randn(3, 4)
    for name in ("standard", "l2", "quantile", "pca", "singhal"):
        with pytest.raises(NotFittedError, match=r"is not fitted: call fit\(x, offsets\) on training rows first"):
            make_transform(name, 4)(x, ALL)
        with pytest.raises(NotFittedError, match=r"is not fitted: call fit\(x, offsets\) on training rows first"):
            make_transform(["log1p", name], 4)(x, ALL)
    for name in ("none", "log1p", "query_minmax", "quadratic"):
        make_transform(name, 4)(x, torch.tensor([0, 3]))


def test_none_returns_the_rows_themselves():
    x = torch.randn(3, 4)
    assert make_transform(None, 4)(x, ALL) is x


def test_a_shared_corpus_is_fitted_row_by_row():
    x = torch.randn(6, 2)
    lists = RankingSet(x, torch.zeros(9), torch.tensor([0, 9]), index=torch.arange(9) % 6)
    assert torch.equal(make_transform("standard", 2).fit(lists.x).mean, x.double().mean(0))
    with pytest.raises(DataError, match="offsets end at 9 but there are 6 rows: give offsets=None for a shared corpus"):
        make_transform("standard", 2).fit(lists.x, lists.offsets)


def test_lists_without_entries_do_not_disturb():
    x, offsets = torch.randn(4, 2), torch.tensor([0, 0, 0, 4, 4, 4])
    for option in ("standard", "query_minmax", "quantile", "pca", "quadratic"):
        assert make_transform(option, 2).fit(x, offsets)(x, offsets).isfinite().all()
    assert make_transform("query_minmax", 2)(x[:0], torch.tensor([0])).shape == (0, 2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("standart", "unknown transform='standart': choose one of none, standard"),
        ({"variance": 0.9}, "unknown transform=None"),
        ({"name": "pca", "variance": 1.5}, r"variance of pca must be > 0 and <= 1, got 1\.5"),
        (["pca", "standard"], "pca must be the last"),
        ({"name": "pca", "components": 3}, "transform pca has no option components; its options are: variance"),
        ({"name": "auto", "sparse": True}, "transform auto has no option sparse; its options are: "),
        (["standard", {"name": "l2", "eps": 1}], "transform l2 has no option eps; its options are: none"),
        (5, "transform must be a name, a mapping with a name and options, or a list of these: 5"),
        ({"name": "singhal", "slope": 1.5}, r"slope >= 0 and <= 1 .*, got slope=1\.5 and min_count=2"),
        ({"name": "singhal", "min_count": 0}, r"min_count >= 1, got slope=0\.3 and min_count=0"),
    ],
)
def test_bad_options_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        make_transform(option, 4)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_beyond_float32_are_refused_where_they_are_kept_as_they_are(sparse):
    rows = torch.tensor([[1.0, 0.0], [2.0, -1e39]], dtype=torch.float64)
    rows = SparseRows.from_dense(rows) if sparse else rows
    with pytest.raises(DataError, match=r"feature 1 \(counted from 0\) of row 1 is beyond float32, in which rows are"):
        transform_rows(rows, None, "cpu", Identity(2))


def test_rows_of_another_width_are_refused():
    with pytest.raises(DataError, match=r"rows of 7 features, got \(3, 4\)"):
        fitted("standard")(torch.zeros(3, 4), ALL)
    with pytest.raises(DataError, match="needs training rows, got 0 rows"):
        make_transform("standard", 4).fit(torch.zeros(0, 4))
