"""The embedded data: its shape, its frequencies, its reproducibility, and that there is something to learn."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchrank.data import make_transform, synthetic_splits
from torchrank.data.synthetic.mslr import GRADES, draw, draw_lengths, make_world


def fingerprint(lists) -> str:
    parts = (lists.x, lists.labels, lists.offsets)
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


def ndcg_at_10(scores: np.ndarray, lists) -> float:
    """Typed again: gain 2^y - 1, discount 1 / log2(1 + rank), lists without a relevant document left out."""
    values = []
    for start, stop in zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist(), strict=True):
        gains = 2.0 ** lists.labels[start:stop].numpy() - 1
        discounts = 1 / np.log2(np.arange(len(gains)) + 2) * (np.arange(len(gains)) < 10)
        if gains.max() > 0:
            best = np.sort(gains)[::-1] @ discounts
            values.append(gains[np.argsort(-scores[start:stop], kind="stable")] @ discounts / best)
    return float(np.mean(values))


def least_squares(x: np.ndarray, lists) -> np.ndarray:
    """Weights of a ridge regression of gains on features, both centred inside each list: a plain linear ranker."""
    centred, gains = x.astype(np.float64), 2.0 ** lists.labels.numpy() - 1
    for start, stop in zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist(), strict=True):
        centred[start:stop] -= centred[start:stop].mean(0)
        gains[start:stop] -= gains[start:stop].mean()
    return np.linalg.solve(centred.T @ centred + 10 * np.eye(x.shape[1]), centred.T @ gains)


def test_same_seed_same_bytes_whatever_the_threads():
    threads = torch.get_num_threads()
    first = fingerprint(synthetic_splits(50, seed=3)["test"])
    torch.set_num_threads(1)
    again = fingerprint(synthetic_splits(50, seed=3)["test"])
    torch.set_num_threads(threads)
    assert first == again != fingerprint(synthetic_splits(50, seed=4)["test"])


def test_splits_share_a_world_but_no_list():
    splits = synthetic_splits(100, mean_length=20, seed=1)
    assert [len(lists) for lists in splits.values()] == [60, 20, 20]
    assert list(splits) == ["train", "val", "test"]
    ids = [name for lists in splits.values() for name in lists.query_ids]
    assert len(set(ids)) == 100
    assert len({fingerprint(lists) for lists in splits.values()}) == 3
    assert fingerprint(splits["train"]) == fingerprint(synthetic_splits(100, mean_length=20, seed=1)["train"])


def test_every_fold_is_a_new_world():
    folds = [synthetic_splits(20, mean_length=20, fold=fold)["test"] for fold in (1, 2, 3)]
    assert len({fingerprint(lists) for lists in folds}) == 3
    assert len({name for lists in folds for name in lists.query_ids}) == 12


def test_the_shape_of_mslr30k():
    assert [len(lists) for lists in synthetic_splits(31_531 // 100, mean_length=5).values()] == [189, 63, 63]
    lengths = draw_lengths(18_919, 120.0, np.random.default_rng(0))
    assert lengths.min() == 1 and lengths.max() == 1251
    assert 110 < lengths.mean() < 125 and np.median(lengths) < lengths.mean()
    assert 2_100_000 < lengths.sum() < 2_400_000


def test_grades_have_the_frequencies_of_mslr():
    lists = synthetic_splits(1000, seed=0)["train"]
    shares = np.bincount(lists.labels.long().numpy(), minlength=5) / len(lists.labels)
    np.testing.assert_allclose(shares, GRADES, atol=0.02)
    assert lists.num_features == 136 and lists.num_grades == 5
    assert lists.x.dtype == torch.float32 and lists.x.isfinite().all()


def test_features_are_like_those_of_mslr():
    x = synthetic_splits(300, seed=2)["train"].x.double()
    zeros = (x == 0).double().mean(0)
    skewness = ((x - x.mean(0)) ** 3).mean(0) / x.std(0) ** 3
    scale = x.std(0).log10()
    assert (zeros > 0.3).sum() > 10 and (skewness > 2).sum() > 20  # many zeros, heavy tails
    assert scale.max() - scale.min() > 3


@pytest.mark.parametrize("seed", [1, 2])
def test_a_global_linear_ranker_beats_single_features_and_local_ones_beat_it(seed):
    world = make_world(136, 6, np.random.default_rng((seed, 0)))
    train = draw(world, [""] * 500, 60.0, np.random.default_rng((seed, 1)), name="train")
    test = draw(world, [""] * 200, 60.0, np.random.default_rng((seed, 2)), name="test")
    transform = make_transform("standard", 136).fit(train.x, train.offsets)
    rows = lambda lists: transform(lists.x, lists.offsets).numpy()  # noqa: E731
    weights = least_squares(rows(train), train)
    linear = ndcg_at_10(rows(test) @ weights, test)
    single = max(ndcg_at_10(sign * rows(test)[:, column], test) for column in world.shared for sign in (1, -1))
    assert linear > single + 0.1
    assert 0.5 < linear < 0.75
    only = replace(world, type_shares=np.eye(6)[seed])  # the same world, queries of one type
    own = draw(only, [""] * 300, 60.0, np.random.default_rng((seed, 3)), name="own")
    other = draw(only, [""] * 200, 60.0, np.random.default_rng((seed, 4)), name="other")
    local = ndcg_at_10(rows(other) @ least_squares(rows(own), own), other)
    assert local > ndcg_at_10(rows(other) @ weights, other) + 0.04


def test_types_have_directions_of_their_own():
    world = make_world(136, 4, np.random.default_rng((0, 0)))
    weights = world.local_weights / np.linalg.norm(world.local_weights, axis=1, keepdims=True)
    cosines = (weights @ weights.T)[~np.eye(4, dtype=bool)]
    assert np.abs(cosines).max() < 0.7
    roles = np.concatenate((world.shared, world.local, world.query_level, world.copies))
    assert len(set(roles.tolist())) == len(roles) < 136  # the rest mean nothing


def test_small_worlds_and_bad_sizes():
    assert synthetic_splits(3, num_features=8, mean_length=4.0, num_types=1)["val"].num_features == 8
    with pytest.raises(ValueError, match=r"data\.num_features must be >= 8 and data\.num_types >= 1, got 5 and 6"):
        synthetic_splits(3, num_features=5)
    with pytest.raises(ValueError, match=r"data\.fold must be >= 1, got 0"):
        synthetic_splits(3, fold=0)
    with pytest.raises(ValueError, match=r"data\.num_queries must be >= 3, .*got 2"):
        synthetic_splits(2)
