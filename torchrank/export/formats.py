"""The formats in which a ranker leaves: each is made in memory, and can score rows to be compared with the ranker."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchrank.data.transforms import PCA, ColumnNorm, Quantile, QueryMinMax, SignedLog, Standard, Transform
from torchrank.export import reader
from torchrank.export.errors import NotExportable
from torchrank.export.models import OneList, check_exportable, model_of, weights_of
from torchrank.export.rows import steps_of
from torchrank.export.trees import trees_of
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.ensemble.ranker import Ensemble
from torchrank.rankers.rankboost import RankBoost
from torchrank.rankers.trees.ranker import GBDTRanker

OPSET = 18  # of ONNX, read by onnxruntime 1.14 and later


class Made(NamedTuple):
    """The bytes of a file, and what reads them: rows (n, D) of one list -> scores (n,)."""

    content: bytes
    score: Callable[[Tensor], Tensor]


def make_pt2(ranker: Ranker, about: dict[str, Any]) -> Made:
    """A program of torch.export: `torch.export.load(path).module()(rows)` in any process that has torch."""
    file = BytesIO()
    torch.export.save(program_of(OneList(ranker)), file, extra_files={"torchrank.json": json.dumps(about)})
    content = file.getvalue()
    return Made(content, torch.export.load(BytesIO(content)).module())


def make_onnx(ranker: Ranker, about: dict[str, Any]) -> Made:
    """A graph with the input `x` (n, D) and the output `scores` (n,)."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"ONNX needs {error.name}: pip install 'torchrank-ltr[export]'") from error
    content = graph_of(program_of(OneList(ranker)), about)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return Made(content, lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0]))


def graph_of(program: torch.export.ExportedProgram, about: dict[str, Any]) -> bytes:
    """An .onnx file of a program, with what is known about it."""
    names: Any = {"input_names": ["x"], "output_names": ["scores"], "opset_version": OPSET, "verbose": False}
    with _quiet(), _refused("ONNX cannot hold this model"):
        made: Any = torch.onnx.export(program, dynamo=True, **names)
    for name, value in about.items():
        made.model.metadata_props[name] = value if isinstance(value, str) else json.dumps(value)
    file = BytesIO()
    made.save(file)
    return file.getvalue()


def program_of(module: nn.Module) -> torch.export.ExportedProgram:
    """A program of a module with one argument `x` (n, D) and the attribute `num_features`, for any n >= 1."""
    rows, length = torch.zeros(7, int(module.num_features)), torch.export.Dim("documents", min=1)  # type: ignore[arg-type]
    with torch.no_grad(), _quiet(), _refused("torch.export cannot trace this model"):
        return torch.export.export(module.cpu().eval(), (rows,), dynamic_shapes={"x": {0: length}})


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """The first line of whatever torch raises, of a dozen kinds."""
    try:
        yield
    except Exception as error:
        told = next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
        raise NotExportable(f"{what}: {told}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of the exporter about itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def make_json(ranker: Ranker, about: dict[str, Any]) -> Made:
    """Weights, rules or trees, and the constants of the transform, as plain numbers; `reader.py` scores them."""
    check_exportable(ranker)
    document = about | plain_ranker(ranker)
    try:
        content = json.dumps(document, allow_nan=False).encode()
    except ValueError as error:
        raise NotExportable(f"{type(ranker).__name__} has numbers that JSON has not: {error}") from error
    read = json.loads(content)
    return Made(content, lambda x: torch.tensor(reader.score(read, x.tolist()), dtype=torch.float32))


def plain_ranker(ranker: Ranker) -> dict[str, Any]:
    """Transform and model in plain values."""
    return {"transform": list(map(_constants, steps_of(ranker.transform))), "model": plain_model(ranker)}


def plain_model(ranker: Ranker) -> dict[str, Any]:
    """The model on transformed rows in plain values."""
    weight = weights_of(ranker)
    if weight is not None:
        return {"kind": "linear", "weights": weight.tolist()}
    if isinstance(ranker, RankBoost):
        rules = [part.tolist() for part in (ranker.feature, ranker.threshold, ranker.alpha)]
        return {"kind": "rules", "rules": rules}  # alpha[t] is added where row[feature[t]] > threshold[t]
    if isinstance(ranker, GBDTRanker):
        trees = {"kind": "trees", **{name: value.tolist() for name, value in trees_of(ranker)._asdict().items()}}
        if ranker.first is None:
            return trees
        parts = [plain_ranker(ranker.first), {"transform": [], "model": trees}]
        return {"kind": "ensemble", "members": [part | {"weight": 1.0, "standardise": False} for part in parts]}
    if isinstance(ranker, Ensemble):
        members = [
            plain_ranker(member) | {"weight": weight, "standardise": not isinstance(member, Ensemble)}
            for weight, member in ranker.used()
        ]
        return {"kind": "ensemble", "members": members}
    model_of(ranker)  # refuses what no format can hold
    raise NotExportable(
        f"JSON is for linear models, rules and trees, not for {type(ranker).__name__}: use .onnx or .pt2"
    )


def _constants(step: Transform) -> dict[str, Any]:
    if isinstance(step, QueryMinMax):
        return {"name": "query_minmax"}
    if isinstance(step, PCA):
        return {"name": "pca", "mean": step.mean.tolist(), "components": step.components.T.tolist()}
    for kind, (name, constants) in BY_COLUMN.items():
        if isinstance(step, kind):
            return {"name": name, "constants": [getattr(step, constant).tolist() for constant in constants]}
    raise NotExportable(f"JSON does not hold the transform {type(step).__name__}: use .onnx or .pt2")


BY_COLUMN: dict[type[Transform], tuple[str, tuple[str, ...]]] = {
    Standard: ("standard", ("mean", "deviation")),
    ColumnNorm: ("l2", ("norm",)),
    SignedLog: ("log1p", ()),
    Quantile: ("quantile", ("nodes", "scores")),
}
FORMATS: dict[str, Callable[[Ranker, dict[str, Any]], Made]] = {"onnx": make_onnx, "pt2": make_pt2, "json": make_json}
