"""Every ranker of the law table leaves as ONNX, torch program and JSON with its own scores, or says why not."""

import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from tests.laws.fitted import fitted
from tests.laws.rankers import CASES, FEATURES
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
from torchrank.export.formats import graph_of, program_of
from torchrank.export.models import OneList
from torchrank.export.table import FORMS

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTHS = (1, 2, 3, 1000)
NETWORKS = ("mlp", "resnet", "dcn", "gam", "attention")  # have no plain form
REASONS = {
    "queries": "query vectors",
    "points": "query vectors",
    "judged": "query vectors",
    "topics": "a model for each topic",
    "dk": "fits a new model",
    "local": "compares the principal directions",
    "random": "has learned nothing",
}


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


class Every(torch.nn.Module):
    """Many rankers side by side, (rankers, n): one export instead of dozens."""

    def __init__(self, rankers):
        super().__init__()
        self.num_features = rankers[0].num_features
        self.each = torch.nn.ModuleList(map(OneList, rankers))

    def forward(self, x):
        return torch.stack([each(x) for each in self.each])


@pytest.fixture(scope="module")
def every():
    """The rankers of the table that leave, one for each class and structure, and one program of all of them."""
    found = {(type(fitted(name)), str(OneList(fitted(name)))): fitted(name) for name in CASES if leaves(name)}
    leaving = {name for name, forms in FORMS.items() if forms.graphs} | {"LocalRank"}
    assert {type(ranker).__name__ for ranker in found.values()} == leaving
    return list(found.values()), program_of(Every(list(found.values())))


@pytest.mark.parametrize("name", CASES)
def test_plain_modules_give_the_scores(name):
    for count in LENGTHS if leaves(name) else ():
        close(OneList(fitted(name))(rows(count, count)), scores(fitted(name), rows(count, count)))


@pytest.mark.slow
def test_onnxruntime_gives_the_scores_of_every_ranker(every, tmp_path):
    rankers, program = every
    (tmp_path / "every.onnx").write_bytes(graph_of(program, {}))
    for count in LENGTHS:
        found = run_onnx(tmp_path / "every.onnx", rows(count, count))
        for row, ranker in zip(found, rankers, strict=True):
            close(row, scores(ranker, rows(count, count)))


ALONE = """
import sys
class Block:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torchrank", "pytorch_lightning", "torchmetrics", "lightning", "lightgbm"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import torch
score = torch.export.load("every.pt2").module()
for n in (1, 2, 3, 1000):
    torch.save(score(torch.randn(n, 5, generator=torch.Generator().manual_seed(n))), f"{n}.pt")
"""


@pytest.mark.slow
def test_torch_programs_of_every_ranker_need_torch_alone(every, tmp_path):
    rankers, program = every
    torch.export.save(program, tmp_path / "every.pt2")
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for count in LENGTHS:
        for row, ranker in zip(torch.load(tmp_path / f"{count}.pt"), rankers, strict=True):
            close(row, scores(ranker, rows(count, count)))


@pytest.mark.parametrize("name", CASES)
def test_json_has_the_scores_or_a_reason(name, tmp_path):
    ranker, path = fitted(name), tmp_path / "model.json"
    if not leaves(name):
        reason = REASONS.get(CASES[name].kind) or REASONS[name.partition("_")[0]]
        for to in ("onnx", "pt2", "json"):
            with pytest.raises(NotExportable, match=reason):
                ranker.export(path, to)
    elif FORMS[type(ranker).__name__].json and not name.startswith(NETWORKS):
        model = json.loads(ranker.export(path).read_text())
        for count in LENGTHS[:3]:
            close(reader.score(model, rows(count, count).tolist()), scores(ranker, rows(count, count)))
        assert model["ranker"] == type(ranker).__name__ and model["num_features"] == FEATURES
    else:
        with pytest.raises(NotExportable, match="JSON is for linear models, rules and trees"):
            ranker.export(path)
    assert path.exists() == (leaves(name) and FORMS[type(ranker).__name__].json and not name.startswith(NETWORKS))


def test_the_table_names_every_ranker():
    import torchrank

    assert FORMS.keys() == torchrank.RANKERS.keys()
    assert export_table().count("\n") == len(FORMS) + 1


TRANSFORMS = ["none", "standard", "query_minmax", "l2", "log1p", "quantile", "pca", "quadratic", ["log1p", "standard"]]


def of_transform(transform, x=None):
    some = lists(0)
    return ListNet(6, transform=transform, rounds=5).fit(
        RankingSet(some.x if x is None else x, some.labels, some.offsets)
    )


def test_every_transform_leaves_by_onnx(tmp_path):
    counts = lists(0).x.abs().mul(3).round()
    rankers = [of_transform(each, counts) for each in [*TRANSFORMS, "singhal", ["log1p", "quantile"]]]
    (tmp_path / "every.onnx").write_bytes(graph_of(program_of(Every(rankers)), {}))
    for count in (1, 40):
        for row, ranker in zip(run_onnx(tmp_path / "every.onnx", counts[:count]), rankers, strict=True):
            close(row, scores(ranker, counts[:count]))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_transforms_leave_by_json(transform, tmp_path):
    ranker, test, path = of_transform(transform), lists(3).x[:50], tmp_path / "model.json"
    if transform == "quadratic":
        with pytest.raises(NotExportable, match="JSON does not hold the transform Quadratic"):
            ranker.export(path)
    else:
        close(reader.score(json.loads(ranker.export(path).read_text()), test.tolist()), scores(ranker, test))


def boosted(*given, **options):
    return GBDTRanker(*given, **options, engine="xgboost", threads=1)


@pytest.mark.parametrize("kind", [RankBoost, GBDTRanker, boosted])
@pytest.mark.parametrize("transform", [None, "standard", "query_minmax"])
def test_rows_on_a_threshold_fall_on_the_same_side(kind, transform, tmp_path):
    """Training rows, rounded so that they tie, hit the thresholds themselves."""
    some = lists(0)
    x = (some.x * 4).round() / 7
    ranker = kind(6, rounds=20, transform=transform).fit(RankingSet(x, some.labels, some.offsets))
    module, plain = OneList(ranker), json.loads(ranker.export(tmp_path / "model.json").read_text())
    for part in (x[: int(some.offsets[1])], x[:60]):
        close(module(part), scores(ranker, part))
        close(reader.score(plain, part.tolist()), scores(ranker, part))


def test_files_tell_what_they_are(tmp_path):
    path = fitted("gbdt").export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    assert about["ranker"] == "GBDTRanker" and about["num_features"] == "5" and "torchrank" in about
    assert [(each.name, len(each.shape), each.shape[-1]) for each in session.get_inputs()] == [("x", 2, FEATURES)]
    close(run_onnx(path, rows(9)), scores(fitted("gbdt"), rows(9)))
    told = {"torchrank.json": ""}
    program = torch.export.load(fitted("lgmml_soft").export(tmp_path / "model.pt2"), extra_files=told).module()
    assert json.loads(told["torchrank.json"])["ranker"] == "LGMML"
    close(program(rows(1)), scores(fitted("lgmml_soft"), rows(1)))


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
    with pytest.raises(NotExportable, match=r"torch\.export cannot trace this model"):
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
    for count in (1, 9):
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
