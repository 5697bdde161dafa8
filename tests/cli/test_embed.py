"""`torchrank embed` with tiny random models: its vectors are those of each text alone, and nothing is fetched."""

import json
import os
import pickle
import shutil
import socket
import sys

import numpy as np
import pytest

from torchrank.cli import main
from torchrank.data.sources.embeddings import load_embeddings
from torchrank.data.sources.embeddings.making import embed_folder
from torchrank.files import alone

pytestmark = pytest.mark.slow  # to import transformers takes seconds
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(40))]
DOCUMENTS = 23
PROMPTS = {"query": "w38 w39 ", "document": "w37 "}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every attempt to reach another machine is counted, also one that the library would catch."""
    tried = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, place: tried.append(place))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **_: tried.append(place) or [])
    yield
    assert tried == []


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """static: the mean of word vectors, of length 1, with prompts; bert: a transformer, as transformers saves it."""
    pytest.importorskip("sentence_transformers")
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("models")
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    steps = [StaticEmbedding(words, embedding_dim=6), Normalize()]
    SentenceTransformer(modules=steps, prompts=PROMPTS, device="cpu").save(str(folder / "static"))
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes)).save_pretrained(folder / "bert")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **names).save_pretrained(folder / "bert")
    return folder


def texts():
    draw = np.random.default_rng(5)
    lengths = draw.integers(1, 30, DOCUMENTS)
    documents = [" ".join(f"w{number}" for number in draw.integers(0, 36, length)) for length in lengths]
    return documents, [f"w{number} w{number + 3}" for number in range(6)]


@pytest.fixture
def folder(tmp_path):
    base = tmp_path / "data"
    (base / "qrels").mkdir(parents=True)
    documents, queries = texts()
    with (base / "corpus.jsonl").open("w") as file:
        for number, text in enumerate(documents):
            title = {"title": f"w{number}"} if number % 3 else {}
            file.write(json.dumps({"_id": f"d{number}", "text": text} | title) + "\n")
    with (base / "queries.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": f"q{number}", "text": text}) + "\n" for number, text in enumerate(queries))
    (base / "qrels" / "all.tsv").write_text("".join(f"q{number}\td{number}\t1\n" for number in range(6)))
    return base


def joined():
    return [f"w{number} {text}" if number % 3 else text for number, text in enumerate(texts()[0])]


def embed(folder, model, *options):
    return main(["embed", str(folder), "--model", str(model), *options])


def by_hand(models, some, *, prompt="", normalise=True):
    """The mean of the word vectors, in float64."""
    from safetensors.numpy import load_file

    table = load_file(models / "static" / "model.safetensors")["embedding.weight"].astype(np.float64)
    rows = np.array([np.mean([table[WORDS.index(word)] for word in (prompt + text).split()], axis=0) for text in some])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalise else rows


def test_vectors_are_the_means_of_word_vectors_after_the_prompts(models, folder, capsys):
    assert embed(folder, models / "static") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}/corpus.npy: 23 vectors of 6 numbers (float32): 23 made now",
        f"{folder}/queries.npy: 6 vectors of 6 numbers (float32): 6 made now",
        f"Use it with: torchrank train data=embeddings data.root={folder}",
    ]
    corpus, queries = (np.load(folder / f"{name}.npy") for name in ("corpus", "queries"))
    np.testing.assert_allclose(corpus, by_hand(models, joined(), prompt=PROMPTS["document"]), atol=1e-6)
    np.testing.assert_allclose(queries, by_hand(models, texts()[1], prompt=PROMPTS["query"]), atol=1e-6)
    sets = load_embeddings(folder, test_fraction=0.5)
    assert sum(map(len, sets.values())) == 6 and sets["train"].document_ids == [f"d{each}" for each in range(DOCUMENTS)]


def test_vectors_of_a_transformer_are_those_of_each_text_alone(models, folder, capsys):
    from sentence_transformers import SentenceTransformer

    assert embed(folder, models / "bert", "--batch", "4", "--text", "{text}", "--normalise") == 0
    assert "has no modules.json: the mean of its token vectors is taken" in capsys.readouterr().err
    model = SentenceTransformer(str(models / "bert"), device="cpu", local_files_only=True)
    for name, some in zip(("corpus", "queries"), texts(), strict=True):
        alone_each = np.array([model.encode(text, normalize_embeddings=True) for text in some])
        np.testing.assert_allclose(np.load(folder / f"{name}.npy"), alone_each, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_options_change_the_vectors_and_json_tells(models, folder, capsys, dtype):
    options = ("--only", "corpus", "--no-normalise", "--text", "{text}", "--dtype", dtype, "--json")
    assert embed(folder, models / "static", *options) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["corpus"] == {
        "out": str(folder / "corpus.npy"),
        "rows": DOCUMENTS,
        "width": 6,
        "dtype": dtype,
        "kept": 0,
        "encoded": DOCUMENTS,
        "empty": 0,
    }
    found, wanted = np.load(folder / "corpus.npy"), by_hand(models, texts()[0], prompt="w37 ", normalise=False)
    assert found.dtype == dtype and not (folder / "queries.npy").exists()
    np.testing.assert_allclose(found, wanted, atol=1e-6 if dtype == "float32" else 2e-3)


@pytest.mark.filterwarnings("ignore:.*has no modules.json")
def test_a_call_that_was_interrupted_is_continued(models, folder, monkeypatch):
    from sentence_transformers import SentenceTransformer

    encode, seen = SentenceTransformer.encode, []

    def counting(self, inputs, *given, **options):
        if len(seen) == 15 and not resumed:
            raise KeyboardInterrupt
        seen.extend(inputs)
        return encode(self, inputs, *given, **options)

    whole = folder.with_name("whole")
    shutil.copytree(folder, whole)
    embed_folder(whole, models / "bert", batch=2)
    monkeypatch.setattr(SentenceTransformer, "encode", counting)
    resumed = False
    with pytest.raises(KeyboardInterrupt):
        embed_folder(folder, models / "bert", batch=2, chunk=5)
    names = sorted(path.name for path in folder.glob("*.*"))
    assert names == ["corpus.jsonl", "corpus.npy.part", "corpus.npy.part.json", "queries.jsonl"]
    resumed = True
    made = embed_folder(folder, models / "bert", batch=2, chunk=5)
    assert seen == joined() + texts()[1] and (made["corpus"]["kept"], made["corpus"]["encoded"]) == (15, 8)
    for name in ("corpus.npy", "queries.npy"):
        np.testing.assert_allclose(np.load(folder / name), np.load(whole / name), atol=1e-6)


def test_what_is_there(models, folder, capsys):
    """The same work is left alone; other vectors are refused, and replaced if asked for."""
    assert embed(folder, models / "static") == 0
    before = (folder / "corpus.npy").read_bytes()
    moved = shutil.copytree(models / "static", folder.with_name("moved"))
    assert embed(folder, moved, "--batch", "7") == 0
    assert "6 numbers (float32): there already, left alone" in capsys.readouterr().out
    for options, told in (
        (["--dtype", "float16"], "made with a different dtype"),
        (["--text", "{text}"], "made with a different template, texts"),
        (["--model", str(models / "bert")], "made with a different model"),
    ):
        assert embed(folder, moved, *options) == 2
        assert f"corpus.npy is there already, {told}: --overwrite makes corpus.npy anew\n" in capsys.readouterr().err
    assert (folder / "corpus.npy").read_bytes() == before
    assert embed(folder, moved, "--only", "corpus", "--dtype", "float16", "--overwrite") == 0
    assert np.load(folder / "corpus.npy").dtype == np.float16
    assert embed(folder, models / "bert", "--only", "corpus", "--overwrite") == 0
    assert "queries.npy was made by another model" in capsys.readouterr().err
    np.save(folder / "corpus.npy", np.zeros((2, 2)))
    assert embed(folder, models / "bert") == 2
    assert "corpus.npy is there already, and was changed since it was made" in capsys.readouterr().err


def test_files_that_embed_has_not_made_stay(models, folder, capsys):
    def refused(told):
        assert embed(folder, models / "static") == 2
        assert told in capsys.readouterr().err

    (folder / "corpus.json").write_text('{"mine": 1}')
    refused("corpus.json: not a record of torchrank embed, which would be written there: move it away")
    (folder / "corpus.json").unlink()
    (folder / "queries.safetensors").write_bytes(b"")
    refused(
        "queries.safetensors is there already, and no record tells what made it: --overwrite makes queries.npy anew"
    )
    (folder / "queries.safetensors").unlink()
    (folder / "corpus.npy").mkdir()
    refused("corpus.npy: expected a file or none, found a folder")


def test_a_second_process_is_refused(models, folder, capsys):
    with alone(folder / ".embed.lock", wait=False):
        assert embed(folder, models / "static") == 2
    assert "another process makes vectors in" in capsys.readouterr().err
    assert embed(folder, models / "static") == 0


def test_empty_texts_are_counted(models, folder, capsys):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "e", "title": "", "text": " "}\n')
    assert embed(folder, models / "static", "--json") == 0
    shown = capsys.readouterr()
    assert (
        "1 of 24 texts are empty, the first in line 24" in shown.err and json.loads(shown.out)["corpus"]["empty"] == 1
    )


# ---- models ----------------------------------------------------------------------------------------------------------


def test_nothing_is_fetched_unless_asked_for(models, folder, capsys, monkeypatch):
    import huggingface_hub

    assert embed(folder, "no-such-model-of-anybody") == 2
    assert "no such folder, and no model of this name was downloaded before" in capsys.readouterr().err
    calls = []

    def snapshot(name, **options):
        calls.append((name, options, huggingface_hub.constants.HF_HUB_OFFLINE))
        return str(models / "static")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert embed(folder, "tiny") == 0 and embed(folder, "someone/tiny", "--download") == 0
    (first, options, offline), (second, fetching, _) = calls
    assert (first, options, offline) == ("sentence-transformers/tiny", {"local_files_only": True}, True)
    assert second == "someone/tiny" and set(fetching) == {"allow_patterns"}
    assert not any(name in os.environ for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_nothing_of_the_folder_of_a_model_is_executed(models, folder, tmp_path, capsys):
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(Evil(mark))).close()
    assert mark.exists(), "the pickle of this test does not work"
    mark.unlink()

    def refused(name, told):
        assert embed(folder, tmp_path / name) == 2
        shown = capsys.readouterr().err.splitlines()
        errors = [line for line in shown if ": warning: " not in line]
        assert len(errors) == 1 and told in errors[0], shown
        assert not mark.exists() and not list(folder.glob("*.npy*"))

    code = shutil.copytree(models / "static", tmp_path / "code")
    (code / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Step: pass\n")
    steps = json.loads((code / "modules.json").read_text())
    (code / "modules.json").write_text(json.dumps([steps[0], steps[1] | {"type": "evil.Step"}]))
    refused("code", "references the module class 'evil.Step'")

    mapped = shutil.copytree(models / "bert", tmp_path / "mapped")
    (mapped / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Step: pass\n")
    change(mapped / "config.json", model_type="new", auto_map={"AutoConfig": "evil.Step", "AutoModel": "evil.Step"})
    refused("mapped", "contains custom code")

    for name, model in (("static", "static"), ("pickled", "bert")):
        pickled = shutil.copytree(models / model, tmp_path / name)
        (pickled / "model.safetensors").unlink()
        (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(mark)))
        refused(name, "pytorch_model.bin: a pickle, which is not opened")
    asking = {"weights_only": False, "use_safetensors": False, "trust_remote_code": True}
    (pickled / "sentence_bert_config.json").write_text(json.dumps({"model_args": asking}))
    (pickled / "other.safetensors").write_bytes(b"")
    refused("pickled", "cannot be loaded on cpu: Error no file named model.safetensors")


def test_models_that_cannot_be_used(models, folder, tmp_path, capsys, monkeypatch):
    from sentence_transformers import SentenceTransformer

    def refused(name, told, *options):
        assert embed(folder, tmp_path / name, *options) == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if ": warning: " not in line]
        assert len(errors) == 1 and told in errors[0] and not list(folder.glob("*.npy*"))

    refused("none", "none: no such folder: give the path of a model")
    refused("data/corpus.jsonl", "corpus.jsonl: expected the folder of a model, found a file")
    refused("data", "data: neither modules.json nor config.json")
    cut = shutil.copytree(models / "static", tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-100])
    refused("cut", "cut: cannot be loaded on cpu: ")
    wrong = shutil.copytree(models / "static", tmp_path / "wrong")
    (wrong / "modules.json").write_text("[1]")
    refused("wrong", "wrong: cannot be loaded on cpu: ")
    shutil.copytree(models / "static", tmp_path / "good")
    refused("good", "good: cannot be loaded on nowhere: ", "--device", "nowhere")
    refused("good", "batch must be >= 1, got 0", "--batch", "0")
    refused("good", "must name a field such as {text}, got 'text'", "--text", "text")
    refused("good", 'corpus.jsonl, line 1: expected a JSON object with "abstract", a string', "--text", "{abstract}")
    monkeypatch.setattr(SentenceTransformer, "modalities", ["text", "image", ("image", "text")], raising=False)
    refused("good", "a model of image too")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    refused("good", "texts need sentence-transformers: pip install 'torchrank-ltr[text]'")


def test_weights_that_are_missing_are_told_and_the_same_each_time(models, folder, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    lacking = shutil.copytree(models / "bert", tmp_path / "lacking")
    weights = load_file(lacking / "model.safetensors")
    del weights["encoder.layer.0.attention.self.query.weight"]
    save_file(weights, lacking / "model.safetensors", {"format": "pt"})
    found = []
    for _ in range(2):
        assert embed(folder, lacking, "--overwrite") == 0
        found.append(np.load(folder / "corpus.npy"))
        told = "1 weights are missing and were drawn at random: encoder.layer.0.attention.self.query.weight"
        assert told in capsys.readouterr().err
    assert np.array_equal(*found)


@pytest.mark.parametrize("given", [{"corpus.jsonl": None}, {"queries.jsonl": "a\n"}, {"queries.jsonl": '{"_id": "1"}'}])
def test_bad_texts_are_told_before_the_model_is_loaded(models, folder, capsys, monkeypatch, given):
    monkeypatch.setattr("torchrank.data.sources.embeddings.making.load_model", lambda *_, **__: pytest.fail("loaded"))
    for name, content in given.items():
        (folder / name).unlink() if content is None else (folder / name).write_text(content)
    before = sorted(folder.iterdir())
    assert embed(folder, models / "static") == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and next(iter(given)) in shown and sorted(folder.iterdir()) == before
