"""Folders of adapters: what others read there is what torchrank computes, and a folder is there as a whole or not."""

import json
import os
import re
import signal

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import torchrank
from torchrank.errors import DataError
from torchrank.export.adapters import folder as module
from torchrank.export.adapters.saved import SavedAdapter

WIDTH = 5
FILES = {"README.md", "adapter.json", "adapter.safetensors"}


def matrix(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape or (WIDTH, WIDTH)).astype(np.float32)


def saved(path, side="query", normalise=None, similarity="inner", outputs=WIDTH):
    """The folder, and the matrices in it by side."""
    shape = (WIDTH, outputs)
    maps = {name: matrix(seed, *shape) for seed, name in enumerate(("query", "document")) if side in (name, "both")}
    given = {name: torch.from_numpy(maps[name]) if name in maps else None for name in ("query", "document")}
    return torchrank.save_adapter(path, **given, normalise=normalise, similarity=similarity), maps


def by_hand(vectors, map_, normalise):
    """The images in float64, with loops."""
    found = []
    for vector in vectors.astype(np.float64):
        vector = vector / np.sqrt((vector**2).sum()) if normalise == "vectors" else vector
        image = vector @ map_.astype(np.float64)
        found.append(image / np.sqrt((image**2).sum()) if normalise == "images" else image)
    return np.array(found)


def names(base):
    return {each.relative_to(base).as_posix() for each in base.rglob("*") if each.is_file()}


def code_of(readme):
    """Its blocks of Python."""
    return re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)


SIDES = [("query", None), ("query", "images"), ("document", None), ("document", "images"), ("both", None),
         ("both", "vectors"), ("both", "images")]  # fmt: skip


@pytest.mark.parametrize(("side", "normalise"), SIDES)
def test_the_lines_of_the_readme_give_the_images(tmp_path, monkeypatch, side, normalise):
    base, maps = saved(tmp_path / "adapter", side, normalise)
    dense = {f"{name}_Dense/{file}" for name in maps for file in ("config.json", "model.safetensors")}
    assert names(base) == FILES | dense and names(tmp_path) == {f"adapter/{each}" for each in names(base)}
    adapter, vectors, readme = torchrank.load_adapter(base), matrix(7, 9, WIDTH), (base / "README.md").read_text()
    monkeypatch.chdir(base)
    for name, map_ in maps.items():
        lines = code_of(readme)[0]
        if (side, name) == ("both", "document"):  # which the README tells to put in place of "query"
            assert '`"document"` for the documents in place of `"query"`' in readme
            lines = lines.replace('"query"', '"document"')
        scope = {"vectors": vectors}
        exec(lines, scope)
        wanted = by_hand(vectors, map_, normalise)
        np.testing.assert_allclose(scope["images"], wanted, rtol=1e-5, atol=1e-6)
        for dtype, near in ((np.float64, 1e-12), (np.float32, 1e-5), (np.float16, 2e-2)):
            images = adapter.apply(vectors.astype(dtype), name)
            assert images.dtype == dtype
            np.testing.assert_allclose(images, by_hand(vectors.astype(dtype), map_, normalise), rtol=near, atol=near)
            assert torch.equal(adapter.apply(torch.from_numpy(vectors.astype(dtype)), name), torch.from_numpy(images))
    for name in {"query", "document"} - maps.keys():
        assert adapter.apply(vectors, name) is vectors


@pytest.mark.parametrize("side", ["query", "document", "both"])
def test_the_files_hold_the_matrices(tmp_path, side):
    base, maps = saved(tmp_path / "adapter", side, similarity="euclidean")
    found = load_file(base / "adapter.safetensors")
    assert found.keys() == maps.keys()
    for name, map_ in maps.items():
        np.testing.assert_array_equal(found[name], map_)
        np.testing.assert_array_equal(load_file(base / f"{name}_Dense/model.safetensors")["linear.weight"], map_.T)
    about = json.loads((base / "adapter.json").read_text())
    assert about == {
        "format": 1, "side": side, "inputs": WIDTH, "outputs": WIDTH, "normalise": None, "similarity": "euclidean"
    }  # fmt: skip


@pytest.mark.parametrize("side", ["query", "document", "both"])
def test_whether_the_index_must_be_rebuilt_is_told(tmp_path, side):
    from torchrank import Adapter

    ranker = Adapter(WIDTH, side=side, rounds=1)
    readme = (ranker.save(tmp_path / "adapter") / "README.md").read_text()
    told = "The index need not be rebuilt" if side == "query" else "The index must be rebuilt"
    assert readme.count("The index ") == 1 and told in readme and "the cosine" in readme


def test_a_map_to_fewer_numbers(tmp_path):
    base, maps = saved(tmp_path / "adapter", "both", "images", outputs=2)
    vectors = matrix(3, 4, WIDTH)
    np.testing.assert_allclose(
        torchrank.load_adapter(base).apply(vectors, "document"), by_hand(vectors, maps["document"], "images"), rtol=1e-5
    )


@pytest.mark.parametrize(("given", "told"), [
    ({}, "needs a matrix"),
    ({"query": torch.ones(3)}, "query must be a matrix"),
    ({"query": torch.ones(3, 2)}, "query must be square"),
    ({"query": torch.ones(3, 2), "document": torch.ones(2, 2)}, "must have one shape"),
    ({"query": torch.full((2, 2), torch.inf)}, r"query must be finite, found inf in \[0, 0\]"),
    ({"query": torch.eye(2) * 1e300}, "query must be finite"),
    ({"query": torch.eye(2), "similarity": "dot"}, "similarity"),
    ({"query": torch.eye(2), "normalise": "all"}, "normalise"),
    ({"query": torch.eye(2), "normalise": "vectors"}, "needs two maps: document vectors stay"),
])  # fmt: skip
def test_what_is_no_adapter_is_not_saved(tmp_path, given, told):
    given = {"query": None, "document": None, "normalise": None, "similarity": "inner"} | given
    given |= {"query": given["query"].double() if isinstance(given["query"], torch.Tensor) else None}
    with pytest.raises(ValueError, match=told):
        torchrank.save_adapter(tmp_path / "adapter", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [np.ones((2, WIDTH + 1)), np.ones((2, WIDTH), dtype=int), np.float32(1)[None]])
def test_vectors_that_do_not_fit_are_refused(tmp_path, wrong):
    adapter = torchrank.load_adapter(saved(tmp_path / "adapter")[0])
    for side in ("query", "document"):
        with pytest.raises(DataError, match=f"expected vectors of {WIDTH} floats"):
            adapter.apply(wrong, side)


# ---- folders that are damaged or forged ------------------------------------------------------------------------------


def about(**values):
    def change(base):
        path = base / "adapter.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def content(name, data):
    return lambda base: (base / name).write_bytes(data)


def matrices(**arrays):
    return lambda base: save_file(arrays, base / "adapter.safetensors")


def cut(base):
    path = base / "adapter.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


HEADER = json.dumps({"query": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 2**64]}}).encode()
NAN = np.full((WIDTH, WIDTH), np.nan, dtype=np.float32)


@pytest.mark.parametrize(("damage", "told"), [
    (lambda base: (base / "adapter.json").unlink(), "not the folder of an adapter, which has adapter.json"),
    (lambda base: (base / "adapter.safetensors").unlink(), "not the folder of an adapter"),
    (content("adapter.json", b""), r"adapter\.json: not JSON"),
    (content("adapter.json", b"\xff"), r"adapter\.json: not JSON"),
    (content("adapter.json", b"[" * 100_000), r"adapter\.json: not JSON"),
    (content("adapter.json", b"[1]"), r'adapter\.json: expected a JSON object with the number "format"'),
    (about(format=True), r'adapter\.json: expected .* "format"'),
    (about(format=2), r"adapter\.json: format 2, this torchrank reads 1"),
    (about(side=None), r'adapter\.json: expected "side" as str, found None'),
    (about(side="left"), r'adapter\.json: "side" must be query, document or both'),
    (about(side="both"), r"adapter\.safetensors: found the matrices query: expected query and document"),
    (about(inputs=True), r'adapter\.json: expected "inputs" as int'),
    (about(outputs=10**30), r"adapter\.safetensors: the matrix query is torch\.float32 \(5, 5\): expected"),
    (about(normalise=3), r'adapter\.json: expected "normalise"'),
    (about(normalise="all"), r"adapter: unknown normalise='all'"),
    (about(normalise="vectors"), r"adapter: normalise='vectors' needs two maps"),
    (about(similarity="dot"), r"adapter: unknown similarity='dot'"),
    (cut, r"adapter\.safetensors: cannot be read"),
    (content("adapter.safetensors", b""), r"adapter\.safetensors: cannot be read"),
    (content("adapter.safetensors", b"\x80\x04cos\nsystem\n"), r"adapter\.safetensors: cannot be read"),
    (content("adapter.safetensors", (2**62).to_bytes(8, "little")), r"adapter\.safetensors: cannot be read"),
    (content("adapter.safetensors", len(HEADER).to_bytes(8, "little") + HEADER), r"adapter\.safetensors: cannot be"),
    (matrices(query=NAN), r"adapter: query must be finite, found nan in \[0, 0\]"),
    (matrices(query=matrix(0).astype(np.float64)), r"the matrix query is torch\.float64"),
    (matrices(query=matrix(0), document=matrix(1)), r"found the matrices document, query: expected query, as"),
])  # fmt: skip
def test_damaged_folders_are_refused_in_one_line_that_names_the_file(tmp_path, damage, told):
    base, _ = saved(tmp_path / "adapter")
    damage(base)
    with pytest.raises((DataError, FileNotFoundError), match=told) as error:
        torchrank.load_adapter(base)
    assert str(base) in str(error.value) and "\n" not in str(error.value)


# ---- folders are written as a whole or not at all --------------------------------------------------------------------


def state(base):
    return {name: (base / name).read_bytes() for name in names(base)}


def test_an_adapter_is_replaced_as_a_whole(tmp_path):
    base, _ = saved(tmp_path / "adapter", "both")
    saved(base, "document", "images")
    assert names(base) == FILES | {"document_Dense/config.json", "document_Dense/model.safetensors"}
    assert torchrank.load_adapter(base).side == "document" and [each.name for each in tmp_path.iterdir()] == ["adapter"]
    link = tmp_path / "link"
    link.symlink_to(base)
    saved(link, "query")
    assert link.is_symlink() and torchrank.load_adapter(base).side == "query"


def test_other_folders_and_files_are_not_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for name in ("adapter", "deep"):
        saved(tmp_path / name)
    (tmp_path / "adapter" / "mine.txt").write_text("mine")
    (tmp_path / "deep" / "query_Dense" / "mine.txt").write_text("mine")
    before = state(tmp_path)
    for name, told in (
        ("file", "it is a file"),
        ("full", "it holds other files"),
        ("adapter", r"mine\.txt is not part of one"),
        ("deep", r"query_Dense/mine\.txt is not part of one"),
    ):
        with pytest.raises(ValueError, match=told):
            saved(tmp_path / name, "both")
    assert state(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert torchrank.load_adapter(saved(tmp_path / "empty")[0]).side == "query"


@pytest.mark.parametrize("there", [False, True])
def test_an_error_at_any_step_changes_nothing(tmp_path, monkeypatch, there):
    base = tmp_path / "adapter"
    if there:
        saved(base, "both")
    before, steps = state(tmp_path), 0
    while True:
        steps, left = steps + 1, [steps + 1]

        def failing(own, *given, left=left, **options):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return own(*given, **options)

        with monkeypatch.context() as patch:
            for name in ("write_bytes", "write_text", "mkdir", "rename"):
                own = getattr(module.Path, name)
                patch.setattr(module.Path, name, lambda *given, own=own, **options: failing(own, *given, **options))
            try:
                saved(base, "query")
            except KeyboardInterrupt:
                assert state(tmp_path) == before, steps
                continue
        break
    assert steps > 7 and torchrank.load_adapter(base).side == "query"
    assert {each.name for each in tmp_path.iterdir()} == {"adapter"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", [1, 2])
def test_after_a_kill_the_former_adapter_is_there_or_can_be_found(tmp_path, monkeypatch, step):
    base, _ = saved(tmp_path / "adapter", "document")
    before, left, rename = state(base), [step], module.Path.rename

    def killed(path, target):
        left[0] -= 1
        return rename(path, target) if left[0] else os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(module.Path, "rename", killed)
        saved(base, "query")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    if step == 1:
        assert state(base) == before
    else:
        with pytest.raises(FileNotFoundError, match=r"Rename .*\.adapter\.former to adapter, or save again"):
            torchrank.load_adapter(base)
        assert state(tmp_path / ".adapter.former") == before
    saved(base, "query")
    assert torchrank.load_adapter(base).side == "query" and {each.name for each in tmp_path.iterdir()} == {"adapter"}


# ---- models of sentence-transformers ---------------------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(20))]
PROMPTS = {"query": "w1 w2 ", "document": "w3 "}
QUERIES, DOCUMENTS = ["w5 w6", "w7", "w8 w9 w10"], ["w11 w5", "w6 w6 w12", "w13", "w14 w15"]


@pytest.fixture(scope="module")
def models():
    """static: word vectors, with prompts; bert: a transformer of two small layers."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    table = StaticEmbedding(words, matrix(11, len(WORDS), WIDTH))
    return {"static": lambda: SentenceTransformer(modules=[table], prompts=PROMPTS, device="cpu"), "bert": bert}


def bert():
    from tempfile import TemporaryDirectory

    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(3)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    sizes = {"hidden_size": WIDTH, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1}
    with TemporaryDirectory() as folder:
        BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=32, **special).save_pretrained(folder)
        return SentenceTransformer(folder, device="cpu", local_files_only=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["static", "bert"])
@pytest.mark.parametrize(("side", "normalise"), SIDES)
def test_a_model_with_an_adapter_gives_the_images_of_its_vectors(models, tmp_path, monkeypatch, kind, side, normalise):
    from sentence_transformers import SentenceTransformer

    model = models[kind]()
    base, maps = saved(tmp_path / "adapter", side, normalise, "euclidean")
    plain = {"query": model.encode_query(QUERIES), "document": model.encode_document(DOCUMENTS)}
    wanted = {name: by_hand(rows, maps[name], normalise) if name in maps else rows for name, rows in plain.items()}

    def check(adapted):
        found = {"query": adapted.encode_query(QUERIES), "document": adapted.encode_document(DOCUMENTS)}
        for name, rows in wanted.items():
            np.testing.assert_allclose(found[name], rows, rtol=1e-4, atol=1e-5)
        assert adapted.similarity_fn_name == "euclidean"

    adapted = torchrank.add_to_sentence_transformer(model, torchrank.load_adapter(base))
    check(adapted)
    adapted.save(str(tmp_path / "model"))
    check(SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True))
    monkeypatch.chdir(base)
    scope = {"model": model}
    exec(code_of((base / "README.md").read_text())[1], scope)
    check(scope["adapted"])
    np.testing.assert_array_equal(model.encode_query(QUERIES), plain["query"])  # the model stays as it is
    again = torchrank.add_to_sentence_transformer(adapted, torchrank.load_adapter(base))  # one with routes
    if "query" in maps:
        np.testing.assert_allclose(
            again.encode_query(QUERIES), by_hand(wanted["query"], maps["query"], normalise), rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
def test_models_that_do_not_fit_are_refused(models):
    model = models["static"]()
    other = SavedAdapter(torch.eye(WIDTH + 1), None, normalise=None, similarity="inner")
    with pytest.raises(DataError, match=f"model have {WIDTH} numbers, the adapter takes {WIDTH + 1}"):
        torchrank.add_to_sentence_transformer(model, other)
    model.truncate_dim = 3
    with pytest.raises(ValueError, match="truncate_dim"):
        torchrank.add_to_sentence_transformer(
            model, SavedAdapter(torch.eye(WIDTH), None, normalise=None, similarity="inner")
        )
