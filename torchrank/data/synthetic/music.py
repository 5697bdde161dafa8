"""Synthetic songs of artists: a stand-in for music similarity by collaborative filtering, with its relevance and noise.

The protocol of McFee, Barrington & Lanckriet (ISMIR 2010) and Lim, McFee & Lanckriet (ICML 2013): two artists are
similar if the same users listen to them, and the relevant songs of a song are those of the ten artists most similar to
its own. This is neither mutual nor transitive. A ranker sees the features of songs only. Here a song is the style of
its artist with a deviation, seen through mixed features of different scales; further features are correlated noise.
Artists are split, not songs, so that no artist of a test song was seen before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torchrank.data.relevance import Judged
from torchrank.data.sets import RankingSet
from torchrank.data.synthetic import check_least

STYLES, GENRES = 8, 12  # dimensions of style, and groups of artists in it
SONG, BLUR = 0.5, 0.5  # deviation of a song from its artist's style, and of its features from what they show
ACTIVE = -3.0  # a user listens to an artist of no interest with probability 1 / (1 + e^3)
SHARES = {"train": 0.4, "val": 0.3, "test": 0.3}  # of the artists


def load_music(
    *,
    artists: int = 200,
    songs_per_artist: float = 3.0,
    users: int = 1000,
    top: int = 10,
    informative: int = 16,
    noise: int = 32,
    fold: int = 1,
    seed: int = 0,
) -> dict[str, RankingSet]:
    """Songs as queries, each of which ranks the songs of the training artists.

    The songs of the `top` training artists most similar to the artist of the query (cosine of their listeners) are
    relevant; for training songs also the other songs of the artist itself.

    Args:
        artists: the number of artists: 40% train, 30% val, 30% test.
        songs_per_artist: the mean number of songs of an artist.
        users: the number of listeners.
        top: similar artists whose songs are relevant.
        informative: features that show the style.
        noise: features that do not.
        fold: the number of the split of the artists, 1, 2, ...
        seed: draws the songs and the splits.

    Example:
        >>> sets = load_music(artists=50)
        >>> {name: len(part) for name, part in sets.items()}, sets["test"].num_features, sets["train"].num_grades
        ({'train': 53, 'val': 45, 'test': 47}, 48, 2)
    """
    check_least(
        artists=(artists, 5),
        songs_per_artist=(songs_per_artist, 1),
        users=(users, 1),
        top=(top, 1),
        informative=(informative, 1),
        noise=(noise, 0),
        fold=(fold, 1),
    )
    world = make_songs(artists, songs_per_artist, users, informative, noise, np.random.default_rng((seed, 0)))
    order = np.random.default_rng((seed, fold, 1)).permutation(artists)
    val, test = (int(np.ceil(share * artists)) for share in (SHARES["train"], SHARES["train"] + SHARES["val"]))
    parts = {"train": order[:val], "val": order[val:test], "test": order[test:]}
    corpus = np.flatnonzero(np.isin(world.artist, parts["train"]))
    if top >= len(parts["train"]):
        raise ValueError(f"data.top must be < {len(parts['train'])}, the number of training artists, got {top}")
    return {name: _songs(world, part, parts["train"], corpus, top, name) for name, part in parts.items()}


@dataclass(frozen=True)
class Songs:
    """What the folds have in common."""

    artist: np.ndarray  # (songs,) rising
    x: np.ndarray  # (songs, features) float32
    similarity: np.ndarray  # (artists, artists) cosine of the sets of listeners


def make_songs(
    artists: int, songs_per_artist: float, users: int, informative: int, noise: int, random: np.random.Generator
) -> Songs:
    """Draw styles, listeners and features.

    Example:
        >>> world = make_songs(20, 3.0, 100, 6, 4, np.random.default_rng(0))
        >>> world.x.shape[1], world.similarity.shape, bool((np.diag(world.similarity) > 0.999).all())
        (10, (20, 20), True)
    """
    genres = random.standard_normal((GENRES, STYLES))
    styles = genres[random.integers(GENRES, size=artists)] + 0.6 * random.standard_normal((artists, STYLES))
    tastes = random.standard_normal((users, STYLES))
    liking = tastes @ styles.T + ACTIVE + random.standard_normal(artists)  # some artists are popular everywhere
    listens = random.random((users, artists)) < 1 / (1 + np.exp(-liking))
    listens[random.integers(users, size=artists), np.arange(artists)] = True  # every artist has a listener
    norms = np.sqrt(listens.sum(0))
    similarity = (listens.T.astype(np.float64) @ listens) / np.outer(norms, norms)
    artist = np.repeat(np.arange(artists), 1 + random.poisson(songs_per_artist - 1, artists))
    style = styles[artist] + SONG * random.standard_normal((len(artist), STYLES))
    scales = np.exp(random.uniform(-1.5, 1.5, informative))
    seen = (style @ random.standard_normal((STYLES, informative))) / np.sqrt(STYLES)
    shown = scales * (seen + BLUR * random.standard_normal(seen.shape))
    x = np.hstack([shown, correlated_noise(len(artist), noise, random)]).astype(np.float32)
    return Songs(artist, x, similarity)


def correlated_noise(rows: int, features: int, random: np.random.Generator) -> np.ndarray:
    """Correlated normal features of variance about 1: mixtures of half as many hidden ones, plus noise.

    Example:
        >>> correlated_noise(3, 4, np.random.default_rng(0)).shape
        (3, 4)
    """
    hidden = max(1, features // 2)
    mixing = random.standard_normal((hidden, features)) / float(np.sqrt(hidden))
    return 0.8 * random.standard_normal((rows, hidden)) @ mixing + 0.6 * random.standard_normal((rows, features))


def _songs(world: Songs, part: np.ndarray, training: np.ndarray, corpus: np.ndarray, top: int, name: str) -> RankingSet:
    """The songs of the artists `part` as queries that rank the rows `corpus`."""
    songs = np.flatnonzero(np.isin(world.artist, part))
    near = most_similar(world.similarity, training, top)  # (artists, artists)
    if name == "train":
        near[training, training] = True
    relevant = near[world.artist[songs]][:, world.artist[corpus]]  # (Q, n)
    own = np.where(np.isin(songs, corpus), np.searchsorted(corpus, songs), len(corpus))
    relevant[np.flatnonzero(own < len(corpus)), own[own < len(corpus)]] = False
    rows, counts = np.nonzero(relevant)[1], relevant.sum(1)
    return RankingSet(
        torch.from_numpy(world.x[corpus]),
        Judged.make(rows, np.ones(len(rows)), counts, len(corpus), torch.from_numpy(own)),
        queries=torch.from_numpy(world.x[songs]),
        query_ids=songs.astype(str),
        document_ids=corpus.astype(str),
        name=name,
    )


def most_similar(similarity: np.ndarray, training: np.ndarray, top: int) -> np.ndarray:
    """Whether the second artist is one of the `top` training artists most similar to the first (artists, artists).

    An artist is not similar to itself.

    Example:
        >>> near = most_similar(np.array([[1, 0.5, 0.2], [0.5, 1, 0.4], [0.2, 0.4, 1]]), np.array([0, 1, 2]), 1)
        >>> near.astype(int).tolist()
        [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    """
    closeness = np.full(similarity.shape, -1.0)
    closeness[:, training] = similarity[:, training]
    np.fill_diagonal(closeness, -1.0)
    best = np.argsort(-closeness, axis=1, kind="stable")[:, :top]
    near = np.zeros(similarity.shape, dtype=bool)
    np.put_along_axis(near, best, True, axis=1)
    return near
