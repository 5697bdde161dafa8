"""RCV1 files written from a plain table of documents, read back; the official split, the topics, and located errors."""

import gzip
from collections import Counter

import numpy as np
import pytest
import torch

from torchrank.data import Judged
from torchrank.data.datamodule import RankingDataModule
from torchrank.data.sources.rcv1 import load_rcv1, read_documents, read_tokens, read_topics, read_vectors
from torchrank.errors import DataError, DataWarning

WORDS = [f"word{number}" for number in range(40)]
TOPICS = ["E11", "CCAT", "M14", "GCAT"]


@pytest.fixture
def world(tmp_path):
    """Files below tmp_path, and what they say: {number: (words, {column: weight}, topics)}, train and test numbers."""
    random = np.random.default_rng(0)
    numbers = {"train": np.arange(2286, 2306), "test": np.arange(26151, 26175)}
    documents = {}
    for number in np.concatenate(list(numbers.values())).tolist():
        words = random.choice(WORDS, random.integers(0, 30), p=zipf()).tolist()
        columns = random.choice(47_236, random.integers(0, 8), replace=False).tolist()
        weights = {column: float(np.float32(random.random() + 0.1)) for column in columns}
        topics = [topic for topic in TOPICS[:3] if random.random() < 0.4] or ["CCAT"]
        documents[number] = (words, weights, topics)
    write(tmp_path, "train", numbers["train"], documents)
    for part, chosen in enumerate(np.split(numbers["test"], 4)):
        write(tmp_path, f"test_pt{part}", chosen, documents)
    lines = [f"{topic} {number} 1" for number, (_, _, topics) in documents.items() for topic in topics]
    random.shuffle(lines)
    (tmp_path / "rcv1-v2.topics.qrels").write_text("\n".join([*lines, "GCAT 26151 0", "E11 999999 1"]) + "\n")
    return tmp_path, documents, numbers


def zipf():
    return (1 / np.arange(1, 41)) / (1 / np.arange(1, 41)).sum()


def write(folder, name, numbers, documents):
    tokens, vectors = "", ""
    for number in numbers.tolist():
        words, weights, _ = documents[number]
        half = len(words) // 2
        tokens += f".I {number}\n.W\n{' '.join(words[:half])}\n{' '.join(words[half:])} \n\n"
        vectors += f"{number}  " + " ".join(f"{c + 1}:{w!r}" for c, w in sorted(weights.items())) + "\n"
    (folder / f"lyrl2004_tokens_{name}.dat").write_text(tokens)
    (folder / f"lyrl2004_vectors_{name}.dat").write_text(vectors)


def load(folder, **options):
    with pytest.warns(DataWarning, match="1 of 4 topics have no training document and are left out: GCAT"):
        return load_rcv1(root=folder, **options)


def check_topics(sets, documents, names):
    for part in sets.values():
        assert isinstance(part.relevance, Judged) and list(part.query_ids) == names and not part.has_queries
        for topic, name in enumerate(names):
            labels = [float(name in documents[int(number)][2]) for number in part.document_ids]
            assert part[topic].labels.tolist() == labels
            assert part.pairs[topic] == sum(labels) * (len(labels) - sum(labels))


def test_tokens_are_counts_of_the_words_of_the_training_file(world):
    folder, documents, numbers = world
    sets = load(folder)
    total = Counter(word for number in numbers["train"].tolist() for word in documents[number][0])
    vocabulary = sorted(word for word, count in total.items() if count >= 2)
    assert 0 < len(vocabulary) < len(total)
    for part in sets.values():
        expected = [[documents[int(n)][0].count(word) for word in vocabulary] for n in part.document_ids]
        assert part.x.dense().tolist() == expected
    check_topics(sets, documents, ["CCAT", "E11", "M14"])
    assert len(load(folder, min_count=1)["train"].x[0:1].dense()[0]) == len(total)


def test_vectors_are_the_published_weights(world):
    folder, documents, _ = world
    sets = load(folder, form="vectors")
    for part in sets.values():
        assert part.x.shape == (len(part.document_ids), 47_236)
        for row, number in enumerate(part.document_ids):
            one = part.x[row : row + 1]
            assert dict(zip(one.columns.tolist(), one.values.tolist(), strict=True)) == documents[int(number)][1]
    check_topics(sets, documents, ["CCAT", "E11", "M14"])


@pytest.mark.parametrize("form", ["tokens", "vectors"])
def test_the_split_is_the_official_one_and_the_last_training_documents_validate(world, form):
    folder, _, numbers = world
    sets = load(folder, form=form, val_fraction=0.25)
    assert list(map(int, sets["train"].document_ids)) == numbers["train"][:15].tolist()
    assert list(map(int, sets["val"].document_ids)) == numbers["train"][15:].tolist()
    assert list(map(int, sets["test"].document_ids)) == numbers["test"].tolist()
    some = load(folder, form=form, val_fraction=0, test_parts=[2, 0])
    assert list(some) == ["train", "test"] and len(some["train"].x) == 20
    assert list(map(int, some["test"].document_ids)) == [*range(26151, 26157), *range(26163, 26169)]
    assert list(load(folder, form=form, test_parts=[])) == ["train", "val"]


def test_documents_in_another_order_are_put_in_order_of_time(world):
    folder, documents, numbers = world
    wanted = load(folder)
    write(folder, "train", numbers["train"][::-1], documents)
    found = load(folder)
    for name, part in wanted.items():
        assert list(found[name].document_ids) == list(part.document_ids)
        assert torch.equal(found[name].x.dense(), part.x.dense()) and torch.equal(found[name].labels, part.labels)


def test_topics_can_be_chosen_in_any_order(world):
    folder, documents, _ = world
    sets = load_rcv1(root=folder, topics=["M14", "CCAT"])
    check_topics(sets, documents, ["M14", "CCAT"])
    for topics in (["GCAT"], ["M14", "none"]):
        with pytest.raises(ValueError, match=rf"unknown topic '{topics[-1]}' in .*: choose some of CCAT, E11, M14"):
            load_rcv1(root=folder, topics=topics)
    with pytest.raises(ValueError, match=r"data\.topics must be different, got M14, M14"):
        load_rcv1(root=folder, topics=["M14", "M14"])
    with pytest.raises(DataError, match=r"no topic of 4 in .* is left"):
        load_rcv1(root=folder, topics=[])


def test_compressed_files_in_a_subfolder(world):
    folder, _, _ = world
    wanted = load(folder)
    (folder / "apart" / "rcv1").mkdir(parents=True)
    for path in [*folder.glob("*.dat"), folder / "rcv1-v2.topics.qrels"]:
        (folder / "apart" / "rcv1" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    found = load(folder / "apart")
    for name, part in wanted.items():
        assert torch.equal(found[name].x.dense(), part.x.dense()) and torch.equal(found[name].labels, part.labels)


def test_the_cache_gives_the_same_and_notices_a_new_vocabulary(world, tmp_path):
    folder, documents, numbers = world
    first, again = (load(folder, cache_dir=tmp_path / "cache") for _ in range(2))
    assert len(list((tmp_path / "cache").iterdir())) == 5
    assert all(torch.equal(part.x.values, first[name].x.values) for name, part in again.items())
    documents[2286] = (["aardvark", "aardvark"], *documents[2286][1:])
    write(folder, "train", numbers["train"], documents)
    changed = load(folder, cache_dir=tmp_path / "cache")
    assert changed["test"].num_features == changed["train"].num_features
    assert changed["train"].x[0:1].dense()[0, 0] == 2  # the first word of the alphabet
    assert not changed["test"].x.dense()[:, 0].any()


def test_documents_without_a_topic_are_counted_in_a_warning(world):
    folder, _, _ = world
    lines = [line for line in (folder / "rcv1-v2.topics.qrels").read_text().splitlines() if " 26152 " not in line]
    (folder / "rcv1-v2.topics.qrels").write_text("\n".join(lines + lines[:3]))  # a repeated line counts once
    with pytest.warns(DataWarning, match="rcv1 test: 1 of 24 documents have no topic"):
        sets = load_rcv1(root=folder, topics=["CCAT"])
    assert sets["test"].relevance.counts.sum() == sets["test"].labels.sum()


def test_the_data_module_reads_it(world):
    data = RankingDataModule("rcv1", root=world[0], topics=["CCAT"])
    data.setup()
    assert data.sets["train"].is_sparse and len(data.sets["test"]) == 1


GOOD = ".I 5\n.W\na b\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b\n", "line 1: expected '.I <number>' and one '.W' before 'a b'"),
        (GOOD + ".I 6\nc d\n", "line 5: expected .* before 'c d'"),
        (GOOD + ".W\n", "line 4: expected .* before '.W'"),
        (GOOD + "\n.I x7\n.W\n", "line 5: document 'x7': expected an integer"),
        (GOOD + ".I 99999999\n.W\n", "line 4: document '99999999': expected an integer below 16777216"),
        (GOOD + ".I 6\n.I 7\n.W\n", "line 5: document 6 has no line '.W'"),
        (GOOD + ".I 6\n", "at its end: document 6 has no line '.W'"),
        (GOOD + GOOD, "line 4: document 5 is in line 1 already"),
        ("\n", "the file has no document"),
    ],
)
def test_bad_token_files_are_located(tmp_path, text, message):
    (tmp_path / "a.dat").write_text(text)
    with pytest.raises(DataError, match=rf"a\.dat.*{message}"):
        list(read_documents(tmp_path / "a.dat"))


def test_a_vocabulary_needs_words(tmp_path):
    (tmp_path / "a.dat").write_text(GOOD)
    with pytest.raises(DataError, match=r"a\.dat: none of 2 words occurs 2 times: lower data\.min_count"):
        read_tokens(tmp_path / "a.dat", vocabulary="a.dat")
    assert read_tokens(tmp_path / "a.dat", vocabulary="a.dat", min_count=1).x.dense().tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5 1:0.5\n\n6 2:x\n", "line 3: .*2:x"),
        ("5 1:0.5\n6 9:0.5\n", "line 2: .*9"),
        ("x 1:0.5\n", "line 1: label 'x'"),
        ("5 1:0.5\n\n6.5 1:1\n", "line 3: expected a document number below 16777216, found 6.5"),
        ("5 1:0.5\n6 1:1\n\n5 2:1\n", "line 4: document 5 is in line 1 already"),
        ("\n", "the file has no document"),
    ],
)
def test_bad_vector_files_are_located(tmp_path, text, message):
    (tmp_path / "a.dat").write_text(text)
    with pytest.raises(DataError, match=rf"a\.dat.*{message}"):
        read_vectors(tmp_path / "a.dat", num_features=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E11 5 1\n\nE11 5\n", "line 3: 'E11 5': expected a topic, a document and 1"),
        ("E11 5 2\n", "line 1: 'E11 5 2'"),
        ("E11 a 1\n", "line 1: document 'a'"),
    ],
)
def test_bad_topic_files_are_located(tmp_path, text, message):
    (tmp_path / "a.qrels").write_text(text)
    with pytest.raises(DataError, match=rf"a\.qrels, {message}"):
        read_topics(tmp_path / "a.qrels")


def test_missing_files_and_impossible_options_say_what_to_do(world, tmp_path):
    folder, _, _ = world
    with pytest.raises(FileNotFoundError, match=r"not found: .*rcv1-v2\.topics\.qrels\. Get it from http.*data\.root="):
        load_rcv1(root=tmp_path / "nowhere")
    (folder / "lyrl2004_vectors_test_pt3.dat").unlink()
    with pytest.raises(FileNotFoundError, match=r"vectors_test_pt3\.dat.*data\.test_parts"):
        load_rcv1(root=folder, form="vectors")
    for options, message in (
        ({"form": "text"}, "unknown data.form='text': choose one of tokens, vectors"),
        ({"fold": 2}, "data.fold of rcv1 must be 1, the official split by time, got 2"),
        ({"val_fraction": 1.0}, "data.val_fraction must be >= 0 and < 1, got 1.0"),
        ({"test_parts": [4]}, "data.test_parts must be some of 0, 1, 2, 3, got 4"),
    ):
        with pytest.raises(ValueError, match=message):
            load_rcv1(root=folder, **options)
    copied = (folder / "lyrl2004_tokens_test_pt0.dat").read_text()
    (folder / "lyrl2004_tokens_test_pt1.dat").write_text(copied)
    with pytest.raises(DataError, match="document 26151 is in two test files"):
        load_rcv1(root=folder, topics=["CCAT"])
