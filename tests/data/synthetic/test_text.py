"""The synthetic text corpus: its shape, its Zipf laws, its topics and its seeds."""

import numpy as np
import pytest
import torch

from torchrank.data import Judged, make_transform
from torchrank.data.datamodule import RankingDataModule
from torchrank.data.synthetic.text import draw_topics, load_text, make_topics, zipf

SMALL = {"num_documents": 1000, "num_features": 3000, "num_topics": 5, "topic_words": 200}


@pytest.fixture(scope="module")
def sets():
    return load_text(**SMALL)


def test_every_split_has_the_same_topics_over_its_own_documents(sets):
    assert {name: part.x.shape for name, part in sets.items()} == {
        "train": (600, 3000),
        "val": (200, 3000),
        "test": (200, 3000),
    }
    ids = [name for part in sets.values() for name in part.document_ids]
    assert len(ids) == len(set(ids)) == 1000
    for name, part in sets.items():
        assert isinstance(part.relevance, Judged) and part.is_sparse and not part.has_queries and part.name == name
        assert part.query_ids == [f"topic-{t}" for t in range(5)]
        assert part.lengths.tolist() == [len(part.x)] * 5 and part.num_grades == 2
        assert part[3:4].x is part.x


def test_topics_have_their_exact_share_of_each_split(sets):
    for part in sets.values():
        shares = 0.1 * 0.1 ** (np.arange(5) / 4)
        expected = np.maximum(1, np.rint(shares * len(part.x)))
        assert part.labels.reshape(5, -1).sum(1).tolist() == expected.tolist()
        assert part.pairs.tolist() == (expected * (len(part.x) - expected)).tolist()
    tiny = load_text(num_documents=10, num_features=50, num_topics=3, topic_words=5)
    assert all((part.labels.reshape(3, -1).sum(1) == 1).all() for part in tiny.values())


def test_counts_are_whole_numbers_and_words_stand_once_and_in_order_in_a_row(sets):
    x = sets["train"].x
    assert x.values.dtype == torch.float32 and x.columns.dtype == torch.int32
    assert (x.values >= 1).all() and (x.values == x.values.round()).all()
    same_row = x.row_ids().diff() == 0
    assert (x.columns.diff()[same_row] > 0).all()
    lengths = x @ torch.ones(3000)
    assert lengths.min() >= 1 and 140 < lengths.mean() < 160
    assert 0.4 < lengths.log().std() < 0.6


def test_the_background_follows_zipf_and_so_do_the_words_of_a_topic():
    frequencies = np.diff(zipf(1000), prepend=0)
    ranks = np.arange(1000)
    np.testing.assert_allclose(frequencies / frequencies[0], 2.7 / (ranks + 2.7), rtol=1e-9)
    x = load_text(num_documents=2000, num_features=1000, num_topics=1, topic_words=1, seed=3)["train"].x
    topic = make_topics(1000, 1, 1, np.random.default_rng((3, 1, 0))).words[0, 0]
    counts = (x.T @ torch.ones(len(x))).double().numpy()
    common = np.setdiff1d(np.arange(20), topic)
    np.testing.assert_allclose(
        counts[common] / counts[common].sum(), frequencies[common] / frequencies[common].sum(), rtol=0.06
    )


def test_topics_share_words_and_each_has_its_own():
    world = make_topics(10_000, 20, 500, np.random.default_rng(0))
    assert world.words.shape == (20, 500) and all(len(set(words)) == 500 for words in world.words)
    topics_of_a_word = np.bincount(world.words.ravel())
    used = topics_of_a_word[topics_of_a_word > 0]
    assert 1.9 < used.mean() < 2.5 and (used > 1).mean() > 0.4
    assert len({tuple(words[:3]) for words in world.words}) == 20


def test_pairs_of_documents_and_topics_are_sorted_and_different():
    pairs = draw_topics(np.array([0.2, 0.5, 0.01]), 50, np.random.default_rng(0))
    keys = pairs[:, 0] * 3 + pairs[:, 1]
    assert (np.diff(keys) > 0).all() and np.bincount(pairs[:, 1]).tolist() == [10, 25, 1]


def test_same_seed_same_bytes_and_other_seeds_and_folds_are_new_worlds(sets):
    again = load_text(**SMALL)
    for name, part in sets.items():
        assert torch.equal(part.x.values, again[name].x.values) and torch.equal(part.x.columns, again[name].x.columns)
        assert torch.equal(part.labels, again[name].labels)
    for options in ({"seed": 1}, {"fold": 2}):
        other = load_text(**SMALL, **options)["train"]
        assert not torch.equal(other.labels, sets["train"].labels)
        assert other.x.values.shape != sets["train"].x.values.shape


@pytest.mark.peers
def test_words_tell_the_topic_of_unseen_documents_but_not_perfectly():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score

    sets = load_text(num_documents=3000, num_features=5000, num_topics=4, topic_words=500, seed=5)
    transform = make_transform("singhal", 5000).fit(sets["train"].x)
    x, unseen = (sets[name].to("cpu", transform).x.dense().numpy() for name in ("train", "test"))
    model = LogisticRegression(C=0.1, max_iter=50).fit(x, sets["train"][0].labels.numpy())
    labels = sets["test"][0].labels.numpy()
    assert 0.5 < average_precision_score(labels, model.decision_function(unseen)) < 0.99


def test_the_data_module_makes_it():
    data = RankingDataModule("text", **SMALL)
    data.setup()
    assert data.num_features == 3000 and len(data.sets["val"]) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_documents": 4}, "data.num_documents must be >= 5, got 4"),
        ({"mean_length": 0.5}, "data.mean_length must be >= 1, got 0.5"),
        ({"topic_words": 3001}, "data.topic_words must be <= data.num_features=3000, the number of words, got 3001"),
        ({"fold": 0}, "data.fold must be >= 1, got 0"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load_text(**SMALL | options)
