"""Synthetic documents with topics: a stand-in for a large text collection, where few of very many words matter.

A document is a bag of words. Most of its words come from a background that all documents share, some from its topics,
and a few from a topic that it only mentions. Background and topics are Zipf distributions. A topic has its own words in
its own order, and every topical word belongs to about two topics, so that no word proves a topic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torchrank.data.letor.store import Growing
from torchrank.data.relevance import Judged
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.synthetic import check_least
from torchrank.progress import bar

RAREST, COMMONEST = 0.01, 0.10  # shares of the documents that have a topic, spread evenly in between (as logarithms)
TOPICAL = (2.0, 6.0)  # Beta distribution of the share of its words that a document takes from its topics
MENTIONED = (1.0, 19.0)  # Beta distribution of the share from a topic that it does not have
WORDS_SHARED = 2  # topics to which a topical word belongs on average
CHUNK = 1024  # documents made at a time


def load_text(
    *,
    num_documents: int = 50_000,
    num_features: int = 100_000,
    num_topics: int = 20,
    topic_words: int = 500,
    mean_length: float = 150.0,
    fold: int = 1,
    seed: int = 0,
) -> dict[str, RankingSet]:
    """Counts of words in documents; list t of each set ranks all documents of the set for topic t.

    The label is 1 if the document has the topic. Word r is the r-th most frequent word of the background. The same seed
    gives the same bytes.

    Args:
        num_documents: documents of all three sets: 60% train, 20% val, 20% test.
        num_features: the number of words.
        num_topics: the number of topics.
        topic_words: words of a topic.
        mean_length: the mean number of words in a document.
        fold: the number of the world, 1, 2, ...: folds are independent repetitions.
        seed: draws the worlds.

    Example:
        >>> sets = load_text(num_documents=100, num_features=2000, num_topics=3, topic_words=50)
        >>> {name: (len(part), part.x.shape[0]) for name, part in sets.items()}, sets["val"].query_ids
        ({'train': (3, 60), 'val': (3, 20), 'test': (3, 20)}, ['topic-0', 'topic-1', 'topic-2'])
    """
    check_least(
        num_documents=(num_documents, 5),
        num_features=(num_features, 2),
        num_topics=(num_topics, 1),
        topic_words=(topic_words, 1),
        mean_length=(mean_length, 1),
        fold=(fold, 1),
    )
    if topic_words > num_features:
        raise ValueError(
            f"data.topic_words must be <= data.num_features={num_features}, the number of words, got {topic_words}"
        )
    world = make_topics(num_features, num_topics, topic_words, np.random.default_rng((seed, fold, 0)))
    val = num_documents // 5
    sizes, sets, first = {"train": num_documents - 2 * val, "val": val, "test": val}, {}, 0
    for stream, (name, size) in enumerate(sizes.items(), start=1):
        random = np.random.default_rng((seed, fold, stream))
        topics = draw_topics(world.shares, size, random)
        x = draw_documents(world, topics, size, mean_length, random)
        rows, documents = topics[np.lexsort((topics[:, 0], topics[:, 1]))].T, np.arange(first, first + size)
        counts = np.bincount(rows[1], minlength=num_topics)
        sets[name] = RankingSet(
            x,
            Judged.make(rows[0], np.ones(len(topics)), counts, size),
            query_ids=[f"topic-{number}" for number in range(num_topics)],
            document_ids=documents.astype(str),
            name=name,
        )
        first += size
    return sets


@dataclass(frozen=True)
class Topics:
    """What the splits have in common."""

    background: np.ndarray  # (words,) cumulative Zipf frequencies
    words: np.ndarray  # (topics, topic words), each topic's most frequent word first
    frequencies: np.ndarray  # (topic words,) cumulative Zipf frequencies
    shares: np.ndarray  # (topics,) of the documents


def zipf(count: int) -> np.ndarray:
    """Cumulative frequencies (count,) of words whose frequency falls with their rank as 1 / (rank + 2.7).

    Example:
        >>> zipf(3).round(2)
        array([0.43, 0.75, 1.  ])
    """
    cumulative = np.cumsum(1 / (np.arange(count) + 2.7))
    return cumulative / float(cumulative[-1])


def make_topics(num_features: int, num_topics: int, topic_words: int, random: np.random.Generator) -> Topics:
    """Draw the words of each topic from a pool that the topics share; frequent words are more often in the pool."""
    size = min(num_features, max(topic_words, num_topics * topic_words // WORDS_SHARED))
    weights = 1 / np.sqrt(np.arange(num_features) + 100)
    pool = random.choice(num_features, size, replace=False, p=weights / weights.sum())
    words = np.stack([random.choice(pool, topic_words, replace=False) for _ in range(num_topics)])
    shares = np.geomspace(COMMONEST, RAREST, num_topics)
    return Topics(zipf(num_features), words, zipf(topic_words), shares)


def draw_topics(shares: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Sorted pairs (document, topic) of who has which topic. Every topic has its exact share, at least 1 document.

    Example:
        >>> pairs = draw_topics(np.array([0.5, 0.1]), 40, np.random.default_rng(0))
        >>> pairs.shape, np.bincount(pairs[:, 1]).tolist()
        ((24, 2), [20, 4])
    """
    counts = np.maximum(1, np.rint(shares * size)).astype(np.int64)
    documents = np.concatenate([random.choice(size, count, replace=False) for count in counts])
    pairs = np.stack((documents, np.repeat(np.arange(len(shares)), counts)), 1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def draw_documents(
    world: Topics, topics: np.ndarray, size: int, mean_length: float, random: np.random.Generator
) -> SparseRows:
    """Word counts of `size` documents with these topics; the words of one chunk are in memory at a time."""
    spread = 0.5
    lengths = np.exp(np.log(mean_length) - spread**2 / 2 + spread * random.standard_normal(size))
    lengths = np.maximum(1, np.rint(lengths)).astype(np.int64)
    width, values, columns, rows = len(world.background), Growing(np.float32), Growing(np.int32), Growing(np.int64)
    for first in bar(range(0, size, CHUNK), desc="make documents"):
        here = lengths[first : first + CHUNK]
        mine = topics[np.searchsorted(topics[:, 0], first) : np.searchsorted(topics[:, 0], first + CHUNK)]
        owner, words = draw_words(world, mine - (first, 0), here, random)
        keys, counts = np.unique(owner * width + words, return_counts=True)
        share = (first + len(here)) / size
        values.append(counts, share)
        columns.append(keys % width, share)
        rows.append(np.bincount(keys // width, minlength=len(here)), share)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(rows.filled))))
    return SparseRows(torch.from_numpy(values.filled), torch.from_numpy(columns.filled), offsets, width)


def draw_words(
    world: Topics, topics: np.ndarray, lengths: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The document and the word of every place in the documents, whose topics are sorted pairs (document, topic)."""
    size, owner = len(lengths), np.repeat(np.arange(len(lengths)), lengths)
    held = np.bincount(topics[:, 0], minlength=size)
    topical = random.beta(*TOPICAL, size) * (held > 0)
    mentioned, passing = random.beta(*MENTIONED, size), random.integers(len(world.words), size=size)
    kind, choice, place = random.random((3, len(owner)))
    words = np.searchsorted(world.background, place, side="right")
    mine = np.flatnonzero(kind < topical[owner])
    first, count = (np.cumsum(held) - held)[owner[mine]], held[owner[mine]]
    topic = topics[first + (choice[mine] * count).astype(np.int64), 1]
    words[mine] = world.words[topic, np.searchsorted(world.frequencies, place[mine], side="right")]
    other = np.flatnonzero(kind > 1 - (mentioned * (1 - topical))[owner])
    words[other] = world.words[passing[owner[other]], np.searchsorted(world.frequencies, place[other], side="right")]
    return owner, words
