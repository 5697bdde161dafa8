"""Every ranker of the law table leaves as ONNX, torch program and JSON with its own scores, or says why not."""

import json
import subprocess
import sys
from functools import cache

import numpy as np
import onnxruntime
import pytest
import torch

from tests.laws.rankers import CASES, FEATURES, sets
from tests.rankers.small import lists
from torchrank import (
    GBDTRanker,
    ListNet,
    NeuralRanker,
    NotExportable,
    QueryKNN,
    RankBoost,
    Ranker,
    RankingSet,
    Round,
    export_table,
)
from torchrank.export import reader
from torchrank.export.models import OneList
from torchrank.export.table import FORMS

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTHS = (1, 2, 3, 1000)
kinds = cache(sets)
REASONS = {
    "queries": "query vectors",
    "points": "query vectors",
    "topics": "a model for each topic",
    "dk": "fits a new model",
    "local": "compares the principal directions",
    "random": "has learned nothing",
}


@pytest.fixture(scope="module", autouse=True)
def one_registry():
    """torch reads the sources of all ONNX operators again at each export, which takes half of its time."""
    from torch.onnx._internal.exporter import _registration

    with pytest.MonkeyPatch.context() as patch:
        known = staticmethod(cache(_registration.ONNXRegistry.from_torchlib))
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", known)
        yield


@cache
def fitted(name):
    torch.manual_seed(0)
    case, own = CASES[name], kinds(CASES[name].kind)
    return case.make().fit(own["train"], own["val"], epochs=case.epochs, batch_documents=20)


def leaves(name):
    ranker = fitted(name)
    return CASES[name].kind == "lists" and (
        FORMS[type(ranker).__name__].graphs or name == "local_network"  # which chose the global model
    )


def rows(count, seed=0, width=FEATURES):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def scores(ranker, x):
    with torch.no_grad():
        return ranker(x, torch.tensor([0, len(x)])).float()


def run_onnx(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"x": x.numpy()})[0]


def close(found, expected):
    limit = 1e-5 * max(1.0, float(expected.abs().max()))
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), atol=limit, rtol=0)


def test_the_plain_module_of_every_ranker_has_its_scores():
    for name in CASES:
        if leaves(name):
            module = OneList(fitted(name))
            for count in LENGTHS:
                close(module(rows(count, count)), scores(fitted(name), rows(count, count)))


@pytest.mark.slow
def test_onnxruntime_gives_the_scores_of_every_ranker(tmp_path):
    """One case for each class and structure: others differ by their numbers only."""
    done = {}
    for name in CASES:
        if leaves(name):
            done.setdefault((type(fitted(name)), str(OneList(fitted(name)))), name)
    for name in done.values():
        path = fitted(name).export(tmp_path / f"{name}.onnx")
        for count in LENGTHS:
            close(run_onnx(path, rows(count, count)), scores(fitted(name), rows(count, count)))
    assert {type(fitted(name)).__name__ for name in done.values()} == {
        name for name, forms in FORMS.items() if forms.graphs
    } | {"LocalRank"}


@pytest.mark.parametrize("name", CASES)
def test_json_has_the_scores_or_a_reason(name, tmp_path):
    ranker, path = fitted(name), tmp_path / "model.json"
    if not leaves(name):
        reason = REASONS.get(CASES[name].kind) or REASONS[name.partition("_")[0]]
        for to in ("onnx", "pt2", "json"):
            with pytest.raises(NotExportable, match=reason):
                ranker.export(path, to)
    elif FORMS[type(ranker).__name__].json and not name.startswith("mlp"):
        model = json.loads(ranker.export(path).read_text())
        for count in LENGTHS[:3]:
            close(reader.score(model, rows(count, count).tolist()), scores(ranker, rows(count, count)))
        assert model["ranker"] == type(ranker).__name__ and model["num_features"] == FEATURES
    else:
        with pytest.raises(NotExportable, match="JSON is for linear models, rules and trees"):
            ranker.export(path)
    assert path.exists() == (leaves(name) and FORMS[type(ranker).__name__].json and not name.startswith("mlp"))


def test_the_table_names_every_ranker():
    import torchrank

    assert FORMS.keys() == torchrank.RANKERS.keys()
    assert export_table().count("\n") == len(FORMS) + 1


ALONE = """
import sys
class Block:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torchrank", "pytorch_lightning", "torchmetrics", "lightning", "lightgbm"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import json, torch
about = {"torchrank.json": ""}
for path in sys.argv[1:]:
    score = torch.export.load(path, extra_files=about).module()
    for n in (1, 2, 1000):
        x = torch.randn(n, 5, generator=torch.Generator().manual_seed(n))
        torch.save(score(x), f"{path}.{n}")
print(json.loads(about["torchrank.json"])["ranker"])
"""


def test_torch_programs_need_torch_alone(tmp_path):
    names = ("listnet", "gbdt", "lgmml_soft", "lgmml_per_query", "mlp_listnet_pca", "adarank", "rankboost")
    paths = [str(fitted(name).export(tmp_path / f"{name}.pt2")) for name in names]
    run = subprocess.run([sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "RankBoost"
    for name, path in zip(names, paths, strict=True):
        for count in (1, 2, 1000):
            close(torch.load(f"{path}.{count}"), scores(fitted(name), rows(count, count)))


@pytest.mark.parametrize(
    "transform",
    ["none", "standard", "query_minmax", "l2", "log1p", "quantile", "pca", "quadratic", ["log1p", "standard"]],
)
def test_every_transform_leaves(transform, tmp_path):
    some = lists(0)
    ranker = ListNet(6, transform=transform, rounds=5).fit(some)
    test = lists(3).x[:50]
    close(torch.export.load(ranker.export(tmp_path / "model.pt2")).module()(test), scores(ranker, test))
    if transform == "quadratic":
        with pytest.raises(NotExportable, match="JSON does not hold the transform Quadratic"):
            ranker.export(tmp_path / "model.json")
    else:
        close(
            reader.score(json.loads(ranker.export(tmp_path / "model.json").read_text()), test.tolist()),
            scores(ranker, test),
        )


def test_transforms_leave_by_onnx_too(tmp_path):
    counts = lists(0).x.abs().mul(3).round()
    for transform in (["log1p", "quantile"], "singhal", "quadratic"):
        some = RankingSet(counts, lists(0).labels, lists(0).offsets)
        ranker = ListNet(6, transform=transform, rounds=5).fit(some)
        close(run_onnx(ranker.export(tmp_path / "model.onnx"), counts[:40]), scores(ranker, counts[:40]))


@pytest.mark.parametrize(
    "make", [lambda t: RankBoost(6, rounds=30, transform=t), lambda t: GBDTRanker(6, rounds=20, transform=t)]
)
@pytest.mark.parametrize("transform", [None, "standard", "query_minmax"])
def test_rows_on_a_threshold_fall_on_the_same_side(make, transform, tmp_path):
    """Training rows, rounded so that they tie, hit the thresholds themselves."""
    some = lists(0)
    x = (some.x * 4).round() / 7
    ranker = make(transform).fit(RankingSet(x, some.labels, some.offsets))
    program = torch.export.load(ranker.export(tmp_path / "model.pt2")).module()
    plain = json.loads(ranker.export(tmp_path / "model.json").read_text())
    first = x[: int(some.offsets[1])]
    for part in (first, x[:60]):
        close(program(part), scores(ranker, part))
        close(reader.score(plain, part.tolist()), scores(ranker, part))


def test_files_tell_what_they_are(tmp_path):
    path = fitted("listnet").export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    assert about["ranker"] == "ListNet" and about["num_features"] == "5" and "torchrank" in about
    assert [(each.name, len(each.shape), each.shape[-1]) for each in session.get_inputs()] == [("x", 2, FEATURES)]


class Doubled(Ranker):
    """A ranker of somebody else."""

    def score(self, batch):
        return 2 * batch.x.sum(1)

    def round(self, lists, number):
        return Round(done=True)


class Picky(Doubled):
    def score(self, batch):
        return batch.x.sum(1) if batch.x.sum() > 0 else -batch.x.sum(1)


class Moody(Doubled):
    """Its score is not a function of the rows."""

    def score(self, batch):
        return batch.x.sum(1) * (2.0 if torch.compiler.is_compiling() else 1.0)


def test_foreign_rankers_leave_if_torch_can_trace_them(tmp_path):
    ranker = Doubled(6, "standard", rounds=1).fit(lists(0))
    x = lists(1).x[:9]
    close(torch.export.load(ranker.export(tmp_path / "own.pt2")).module()(x), scores(ranker, x))
    with pytest.raises(NotExportable, match=r"torch\.export cannot trace OwnScore"):
        Picky(6, "standard", rounds=1).fit(lists(0)).export(tmp_path / "picky.pt2")


class Attention(torch.nn.Module):
    """A network of somebody else that looks at the whole list."""

    def __init__(self, num_inputs):
        super().__init__()
        self.out = torch.nn.Linear(2 * num_inputs, 1)

    def forward(self, x, offsets):
        sums = torch.zeros(len(offsets) - 1, x.shape[1], dtype=x.dtype)
        lists = torch.searchsorted(offsets, torch.arange(x.shape[0]), right=True) - 1
        means = sums.index_add(0, lists, x) / offsets.diff()[:, None]
        return self.out(torch.cat((x, torch.relu(x - means[lists])), 1))


@pytest.mark.parametrize("scorer", [Attention, torch.nn.Linear(6, 1)])
def test_networks_of_ones_own_leave(scorer, tmp_path):
    ranker = NeuralRanker(6, scorer, "listnet").fit(lists(0), epochs=1)
    program = torch.export.load(ranker.export(tmp_path / "own.pt2")).module()
    for count in (1, 2, 9):
        close(program(lists(1).x[:count]), scores(ranker, lists(1).x[:count]))


def test_wrong_scores_are_never_written(tmp_path, monkeypatch):
    (tmp_path / "model.json").write_text("old")
    with pytest.raises(NotExportable, match="nothing was written: the exported Moody differs from the ranker by"):
        Moody(6, "standard", rounds=1).fit(lists(0)).export(tmp_path / "model.pt2")
    monkeypatch.setattr(reader, "leaf", lambda *_: 0.0)
    with pytest.raises(NotExportable, match="nothing was written"):
        fitted("gbdt").export(tmp_path / "model.json")
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]
    assert (tmp_path / "model.json").read_text() == "old"


def test_bad_places_and_unfitted_rankers(tmp_path):
    with pytest.raises(ValueError, match=r"end it in \.onnx, \.pt2, \.json"):
        fitted("listnet").export(tmp_path / "model.txt")
    with pytest.raises(ValueError, match="unknown to='xml'"):
        fitted("listnet").export(tmp_path / "model", "xml")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match="it is a folder"):
        fitted("listnet").export(tmp_path / "folder.json")
    assert json.loads(fitted("listnet").export(tmp_path / "model", "json").read_text())["model"]["kind"] == "linear"
    for ranker in (ListNet(5), GBDTRanker(5), QueryKNN(5), NeuralRanker(5)):
        for to in ("pt2", "json"):
            with pytest.raises(ValueError, match="not fitted"):
                ranker.export(tmp_path / "none", to)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"linear_tree": True}, "linear_tree"), ({"zero_as_missing": True}, "zero_as_missing")],
)
def test_trees_of_other_kinds_are_refused(options, reason, tmp_path):
    ranker = GBDTRanker(6, rounds=3, objective="regression", min_leaf=5, options=options).fit(lists(0))
    with pytest.raises(NotExportable, match=reason):
        ranker.export(tmp_path / "model.json")
