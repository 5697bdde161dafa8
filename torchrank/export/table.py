"""Which ranker has which form, and why not: the table of docs/deployment.md."""

from typing import NamedTuple

QUERIES = "not with query vectors"
DISTANCES = "measures distances from query vectors, which a list's rows do not hold"


class Forms(NamedTuple):
    """Whether a ranker can be exported: graphs are .onnx and .pt2."""

    graphs: bool
    json: bool
    note: str = ""


FORMS = {
    "ListNet": Forms(True, True),
    "LambdaRank": Forms(True, True),
    "NeuralRanker": Forms(True, True, "json: scorer=linear only, without the constant of mse, bce and ordinal"),
    "SingleFeature": Forms(True, True),
    "PAMIR": Forms(True, True, "not with per_topic=true: a list's rows do not tell its topic"),
    "DominationRank": Forms(True, True, "not with per_topic=true: a list's rows do not tell its topic"),
    "SVMMap": Forms(True, True, QUERIES),
    "RankSVM": Forms(True, True, QUERIES),
    "AdaRank": Forms(True, True),
    "RankBoost": Forms(True, True, "json: rules"),
    "GBDTRanker": Forms(True, True, "json: trees; not with linear_tree, categorical features or zero_as_missing"),
    "GMML": Forms(True, False, f"{QUERIES}; json: metrics are matrices"),
    "LGMML": Forms(True, False, f"{QUERIES}; json: metrics are matrices"),
    "LGMMLNet": Forms(True, False, "json: metrics are matrices"),
    "Ensemble": Forms(True, True, "where all members can be; one of them without a form in a format refuses it"),
    "QueryKNN": Forms(True, False, "json: a model for every training query"),
    "LocalRank": Forms(
        False,
        False,
        "compares the directions of a list with those of all training lists; exported where it chose the global model",
    ),
    "TransductivePCA": Forms(False, False, "fits a new model for every list, from all training lists"),
    "RandomRanker": Forms(False, False, "has learned nothing, and its digits depend on the machine"),
    "MLR": Forms(False, False, DISTANCES),
    "RMLR": Forms(False, False, DISTANCES),
    "LowRankMLR": Forms(False, False, DISTANCES),
    "Adapter": Forms(False, False, "compares with query vectors: `save(folder)` writes its maps for other tools"),
    "MetricBaseline": Forms(False, False, DISTANCES),
}


def export_table() -> str:
    """Which ranker can be exported to which format, and why not.

    Returns:
        A table in Markdown, a row for each ranker.

    Example:
        >>> export_table().splitlines()[2]
        '| `ListNet` | yes | yes | yes |  |'
    """
    lines = ["| ranker | .onnx | .pt2 | .json | remarks |", "|---|---|---|---|---|"]
    for name, forms in FORMS.items():
        graphs, plain = ("yes" if there else "no" for there in (forms.graphs, forms.json))
        lines.append(f"| `{name}` | {graphs} | {graphs} | {plain} | {forms.note} |")
    return "\n".join(lines)
