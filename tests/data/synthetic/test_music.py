"""Synthetic songs and people: relevance by loops, what is signal and what is noise, and what folds are."""

import numpy as np
import pytest
import torch

from torchrank import RMLR
from torchrank.data.synthetic.matchmaking import hidden_mixtures, load_matchmaking
from torchrank.data.synthetic.music import load_music, make_songs
from torchrank.functional import auc, evaluate


def songs_of(lists):
    return [int(name) for name in lists.query_ids]


def test_relevant_songs_are_those_of_the_most_similar_artists():
    sets = load_music(artists=40, top=3, fold=2, seed=5)
    world = make_songs(40, 3.0, 1000, 16, 32, np.random.default_rng((5, 0)))
    train = songs_of(sets["train"])
    known = sorted({int(world.artist[song]) for song in train})
    for name, lists in sets.items():
        for place, song in enumerate(songs_of(lists)):
            artist = int(world.artist[song])
            others = sorted((a for a in known if a != artist), key=lambda a: -world.similarity[artist, a])
            near = {*others[:3], *([artist] if name == "train" else [])}
            batch = lists[place]
            ranked = [train[row] for row in batch.index.tolist()]
            assert ranked == [other for other in train if other != song]
            assert batch.labels.tolist() == [float(int(world.artist[other]) in near) for other in ranked]
            assert np.array_equal(batch.queries[0], world.x[song])


def test_relevance_is_neither_mutual_nor_transitive():
    lists = load_music(artists=60)["train"]
    relevant = np.zeros((len(lists), len(lists)), dtype=bool)
    batch = lists[:]
    owner = torch.repeat_interleave(batch.offsets.diff())
    relevant[owner[batch.labels > 0], batch.index[batch.labels > 0]] = True
    assert (relevant != relevant.T).mean() > 0.02
    two_steps = (relevant.astype(int) @ relevant) > 0
    assert (two_steps & ~relevant).sum() > relevant.sum() / 2


def test_folds_split_the_artists_of_one_world():
    first, again, second, other = (load_music(artists=40, fold=f, seed=s) for f, s in ((1, 0), (1, 0), (2, 0), (1, 1)))
    assert torch.equal(first["test"].queries, again["test"].queries) and songs_of(first["test"]) != songs_of(
        second["test"]
    )
    count = {sum(len(part) for part in sets.values()) for sets in (first, second)}
    assert len(count) == 1 and not torch.equal(first["train"].x[:5], other["train"].x[:5])
    artist = make_songs(40, 3.0, 1000, 16, 32, np.random.default_rng((0, 0))).artist
    seen = [{int(artist[song]) for song in songs_of(part)} for part in first.values()]
    assert [len(part) for part in seen] == [16, 12, 12] and len(set.union(*seen)) == 40
    assert first["train"].x is not None and all(part.x.equal(first["train"].x) for part in first.values())


def distance_auc(lists, keep):
    """Mean AUC of the Euclidean distance in some of the features."""
    batch = lists[:]
    rows = batch.x if batch.index is None else batch.x[batch.index]
    gaps = rows[:, keep] - batch.queries[torch.repeat_interleave(batch.offsets.diff())][:, keep]
    return auc(-(gaps**2).sum(1), batch.labels, batch.offsets).nanmean().item()


def test_noise_features_tell_nothing():
    songs, people = load_music()["test"], load_matchmaking()["test"]
    assert distance_auc(songs, slice(16, 48)) == pytest.approx(0.5, abs=0.03)
    assert distance_auc(people, slice(12, 36)) == pytest.approx(0.5, abs=0.03)
    assert distance_auc(songs, slice(0, 16)) > 0.7 and distance_auc(people, slice(0, 12)) > 0.6


def test_matches_are_those_of_the_hidden_metric():
    sets = load_matchmaking(queries=200, fold=3, seed=7)
    lists, hidden = sets["test"], torch.from_numpy(hidden_mixtures(12, np.random.default_rng((7, 0)))).float()
    batch = lists[:]
    gaps = batch.x[:, :12] - batch.queries[torch.repeat_interleave(batch.offsets.diff())][:, :12]
    found = evaluate(-((gaps @ hidden.T) ** 2).sum(1), batch.labels, batch.offsets, measures=["auc"])["auc"]
    assert found.mean() > 0.85 > distance_auc(lists, slice(0, 12)) + 0.1
    for q, length in enumerate(lists.lengths):
        assert lists[q].labels.sum() == max(1, int(0.3 * length)) and 10 <= length <= 30
    assert {name: len(part) for name, part in sets.items()} == {"train": 200, "val": 100, "test": 200}
    again, new = (load_matchmaking(queries=200, fold=fold, seed=7)["test"] for fold in (3, 4))
    assert torch.equal(again.x, lists.x) and not torch.equal(new.queries, lists.queries)
    everybody = torch.cat([torch.cat([part.x, part.queries]) for part in sets.values()])
    assert len(everybody.unique(dim=0)) == len(everybody)


@pytest.mark.parametrize(("load", "option", "message"), [
    (load_music, {"artists": 4}, "data.artists must be >= 5, got 4"),
    (load_music, {"artists": 20, "top": 9}, "data.top must be < 8, the number of training artists, got 9"),
    (load_music, {"fold": 0}, "data.fold must be >= 1, got 0"),
    (load_matchmaking, {"candidates": 1}, "data.candidates must be >= 2, got 1"),
])  # fmt: skip
def test_options_are_checked(load, option, message):
    with pytest.raises(ValueError, match=message):
        load(**option)


def test_robust_mlr_drops_the_noise():
    """The l2,1 norm of R-MLR: rows of noise features are 0, most informative ones are not."""
    ranker = RMLR(36, C=10.0, lam=10.0, eps=1e-2, rounds=40).fit(load_matchmaking()["train"])
    norms = ranker.get_mahalanobis_matrix().norm(dim=1)
    norms = norms / norms.max()
    assert (norms[12:] < 1e-4).all() and (norms[:12] > 1e-2).sum() >= 6, norms
