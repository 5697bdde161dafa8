"""The table of all measures, their names, and named conventions, each that of another tool.

Example:
    >>> import torch
    >>> from torchrank.functional import evaluate
    >>> scores, labels, offsets = torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3])
    >>> for name in ("default", "letor", "xgboost"):
    ...     print(name, evaluate(scores, labels, offsets, measures=["ndcg"], convention=name)["ndcg"].tolist())
    default [0.6309297535714575, nan]
    letor [1.0, 0.0]
    xgboost [0.6309297535714575, 1.0]
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor

from torchrank.errors import check_choice

OPTIONAL, REQUIRED, NONE = "optional", "required", "none"  # whether the name of a measure has a cut-off, as ndcg@10

# what a list needs to have a value, as the end of a sentence
GRADED = "a relevant document (a label above 0)"
RELEVANT = "a relevant document (a label of {threshold:g} or more)"
BOTH = "both relevant documents (a label of {threshold:g} or more) and others"
DIFFERENT = "documents with different labels"

Public = TypeVar("Public", bound=Callable[..., Any])


class Measure(NamedTuple):
    """A row of `MEASURES`: all that the package knows of one measure."""

    name: str  # in `evaluate`, without a cut-off
    function: Callable[..., Tensor]  # of scores, labels and lists; its name is another name of the measure
    of: Callable[..., Any]  # of a `Ranking`, a cut-off `k` or several `cuts` if it has them, and the options below
    options: tuple[str, ...]  # what `of` takes of a convention or of the caller: gain, threshold, max_label, ...
    takes: str  # "k", "cuts" or "": which cut-offs `of` takes at once
    aliases: tuple[str, ...] = ()  # further names; upper and lower case are the same
    cut: str = NONE  # OPTIONAL, REQUIRED or NONE
    needs: str = RELEVANT  # without which a list has no value
    documents: int = 1  # of a list, without which it has no value
    asks: str = ""  # what a caller is told who has not given the options that no convention knows
    better: str = "higher"
    from_ranks: bool = False  # documents of label 0 matter only by the ranks of the others
    metric: str | None = None  # the name of its class in `torchrank.metrics`
    highest: float | None = 1.0  # the upper end of its values, for plots
    soft: Callable[..., Tensor] | None = None  # of soft ranks, for `as_loss`

    def values(self, ranking: Any, cuts: list[int | None], options: Mapping[str, Any]) -> list[Tensor]:
        """The values `(Q,)` of a ranking at several cut-offs, in float64."""
        given = {name: options[name] for name in self.options}
        if self.takes == "cuts":
            return cast(list[Tensor], self.of(ranking, cuts, **given))
        return [self.of(ranking, k, **given) if self.takes else self.of(ranking, **given) for k in cuts]


MEASURES: dict[str, Measure] = {}  # by name; filled by `in_table` where a measure is defined
NAMES: dict[str, str] = {}  # the name of a measure by each of its names


def in_table(name: str, *aliases: str, of: Callable[..., Any], **facts: Any) -> Callable[[Public], Public]:
    """Enters a public function into `MEASURES`, and so into `evaluate`, the metrics, `as_loss` and the documentation.

    Args:
        name: the name of the measure in `evaluate`.
        aliases: further names.
        of: computes it from a `Ranking`. Its keywords without a default are options of a convention or of `evaluate`.
        facts: further fields of `Measure`.

    Returns:
        A decorator, which returns the function as it is.
    """
    parameters = inspect.signature(of).parameters.values()
    options = tuple(each.name for each in parameters if each.kind == each.KEYWORD_ONLY and each.default is each.empty)
    takes = next((each.name for each in parameters if each.name in ("k", "cuts")), "")

    def enter(function: Public) -> Public:
        MEASURES[name] = Measure(name, function, of, options, takes, aliases, **facts)
        NAMES.update(dict.fromkeys((name, function.__name__, *aliases), name))
        return function

    return enter


def soft(name: str) -> Callable[[Public], Public]:
    """Enters the soft form of a measure into its row: a function of lists with soft ranks, see `as_loss`."""

    def enter(function: Public) -> Public:
        MEASURES[name] = MEASURES[name]._replace(soft=function)
        return function

    return enter


class Convention(NamedTuple):
    """What a tool means by its measures. The defaults are those of this library."""

    measures: Collection[str] = MEASURES.keys()
    gain: str = "exp2"
    discount: str = "log2p1"
    ties: str = "stable"  # "stable", "average", or "ids": by document id descending, which needs `tiebreak`
    threshold: float = 1  # relevant: label >= threshold
    empty: float = math.nan  # the value of a query without relevant documents
    short: str = "pad"  # NDCG@k of a list shorter than k: "pad" or "zero"
    map_divisor: str = "relevant"  # MAP@k divides by all relevant documents, or by "cut": min(relevant, k)
    minus: bool = False  # `ndcg@k-` and `map@k-` exist, in which queries without relevant documents count 0
    float32: bool = False  # scores are rounded to float32 first


CONVENTIONS = {  # by name, see `describe`; the numbers of other tools are reproduced to 1e-9
    "default": Convention(),
    "letor": Convention(("ndcg", "mean_ndcg", "map", "p"), discount="letor", empty=0, short="zero"),
    # LightGBM: label > 0.5 in float32, so the threshold is the next number above 0.5
    "lightgbm": Convention(("ndcg", "map"), threshold=0.5 + 2**-24, empty=1, map_divisor="cut"),
    "xgboost": Convention(
        ("ndcg", "map"), threshold=0.5 + 2**-24, empty=1, map_divisor="cut", minus=True, float32=True
    ),
    "trec": Convention(("ndcg", "map", "p", "recall", "hit", "mrr"), gain="linear", ties="ids", empty=0, float32=True),
    "sklearn": Convention(("ndcg", "dcg"), gain="linear", ties="average", empty=0),
}

GAIN_TEXT = {"exp2": "2^y-1", "linear": "y"}
DISCOUNT_TEXT = {"log2p1": "1/log2(1+rank)", "letor": "1, 1, 1/log2(rank)"}
TIES_TEXT = {"stable": "stable", "average": "averaged", "ids": "by document id descending"}


class MeasureName(NamedTuple):
    """The parts of a name: `ndcg@10` has the family `ndcg`, which is its row in `MEASURES`, and k = 10."""

    family: str
    k: int | None
    minus: bool  # XGBoost's `-` at the end of the name

    def __str__(self) -> str:  # the one name under which its values are given
        return self.family + (f"@{self.k}" if self.k else "") + ("-" if self.minus else "")


class Values(dict[str, Tensor]):
    """Values by the names of their measures. They may be asked for by any other name of a measure, too.

    >>> import torch
    >>> Values({"p@5": torch.tensor([0.2])})["precision@5"]
    tensor([0.2000])
    """

    def __missing__(self, name: str) -> Tensor:
        try:
            usual = canonical(name)
        except ValueError:
            raise KeyError(name) from None
        if usual == name:
            raise KeyError(name)
        return self[usual]


def describe(convention: str = "default", *, threshold: float | None = None) -> str:
    """Describes in one line what the numbers of a convention mean, for the reader of a table.

    Args:
        convention: a name in `CONVENTIONS`.
        threshold: the lowest label that counts as relevant; None takes that of the convention.

    Returns:
        Gain, discount, ties, threshold and the value of queries without relevant documents, in words.

    Example:
        >>> describe()
        'gain 2^y-1, discount 1/log2(1+rank), ties stable, relevant y>=1, queries without relevant documents left out'
    """
    rules = convention_of(convention, threshold)
    relevant = "y>0.5" if rules.threshold == 0.5 + 2**-24 else f"y>={rules.threshold:g}"
    empty = "left out" if math.isnan(rules.empty) else f"count {rules.empty:g}"
    parts = [
        f"gain {GAIN_TEXT[rules.gain]}",
        f"discount {DISCOUNT_TEXT[rules.discount]}",
        f"ties {TIES_TEXT[rules.ties]}{' after rounding to float32' if rules.float32 else ''}",
        *([f"relevant {relevant}"] if any("threshold" in MEASURES[name].options for name in rules.measures) else []),
        f"queries without relevant documents {empty}",
        *(["NDCG@k of lists shorter than k counts 0"] if rules.short == "zero" else []),
        *(["MAP@k over min(relevant, k)"] if rules.map_divisor == "cut" else []),
    ]
    return ", ".join(parts)


def convention_of(name: str, threshold: float | None = None) -> Convention:
    """The convention of this name, with another threshold if one is given."""
    check_choice(CONVENTIONS, convention=name)
    rules = CONVENTIONS[name]
    return rules if threshold is None else rules._replace(threshold=threshold)


def parse_measure(text: str, convention: str = "default") -> MeasureName:
    """The family and the cut-off of a measure name. Refuses what the convention does not define.

    >>> parse_measure("ndcg@10")
    MeasureName(family='ndcg', k=10, minus=False)
    """
    rules, measure = convention_of(convention), _parse(text)
    if not _has(convention, measure):
        raise ValueError(
            f"convention={convention!r} does not define {text!r}, only {', '.join(rules.measures)}. "
            'Use convention="default" for this measure.'
        )
    if measure.minus and not rules.minus:
        raise ValueError(f"the - of {text!r} is XGBoost's (queries without relevant documents count 0): "
                         f'use convention="xgboost", got {convention!r}')  # fmt: skip
    return measure


def canonical(text: str) -> str:
    """The name under which the values of a measure are given, whichever of its names this is.

    Case does not matter, and the names of trec_eval are known (`ndcg_cut_10`, `P_5`, `success_1`, `recip_rank`).

    >>> [canonical(name) for name in ("P@5", "precision@5", "P_5", "NDCG", "ndcg_cut_10", "success@1", "recip_rank")]
    ['p@5', 'p@5', 'p@5', 'ndcg', 'ndcg@10', 'hit@1', 'mrr']
    """
    return str(_parse(text))


def _parse(text: str) -> MeasureName:
    lower = str(text).lower()
    match = re.fullmatch(r"([a-z_]+?)(?:(?:@|_cut_|_)([1-9][0-9]*))?(-?)", lower)
    family, k, minus = match.groups() if match else ("", None, "")
    row = MEASURES.get(NAMES.get(family, ""))
    if row is None or row.cut == (NONE if k else REQUIRED):
        known = ", ".join(name for row in MEASURES.values() for name in forms(row))
        typed, at, cut = lower.partition("@")
        near = () if typed in MEASURES else get_close_matches(typed, NAMES, 1)
        hint = "".join(f". Did you mean {name}{at}{cut}?" for name in near)
        raise ValueError(f"unknown measure {text!r}: choose among {known}{hint}")
    return MeasureName(row.name, int(k) if k else None, bool(minus))


def forms(row: Measure) -> list[str]:
    """The name of a measure with a cut-off, without one, or both."""
    return [f"{row.name}@k"] * (row.cut != NONE) + [row.name] * (row.cut != REQUIRED)


def _has(convention: str, measure: MeasureName) -> bool:
    """Whether the convention has this family; trec_eval has no mrr with a cut-off."""
    cut_mrr = measure.family == "mrr" and measure.k is not None
    return measure.family in convention_of(convention).measures and not (convention == "trec" and cut_mrr)


def defines(convention: str, measure: str) -> bool:
    """Whether the convention defines this measure, which must be a known one.

    >>> defines("sklearn", "ndcg@5"), defines("sklearn", "map"), defines("trec", "mrr@5")
    (True, False, False)
    """
    name = _parse(measure)
    return _has(convention, name) and (convention_of(convention).minus or not name.minus)


def why_nan(measure: str, threshold: float, *, lists: int, longest: int | None = None) -> str:
    """Why the mean of a measure over `lists` lists is nan: none of them has a value.

    Args:
        measure: its name.
        threshold: the lowest label that counts as relevant.
        lists: the number of lists.
        longest: entries of the longest list, if it is known.

    Returns:
        The reason, as the end of a sentence.

    Example:
        >>> why_nan("ndcg@10", 1, lists=3), why_nan("auc", 1, lists=3, longest=1)
        ('none of the 3 lists has a relevant document (a label above 0)', 'none of the 3 lists has two documents')
    """
    row = MEASURES[_parse(measure).family]
    if lists == 0 or longest == 0:
        return "there are no lists" if lists == 0 else f"all {lists} lists are empty"
    short = longest is not None and longest < row.documents
    needs = "two documents" if short else row.needs.format(threshold=threshold)
    return f"none of the {lists} lists has {needs}"


def tell_nan(means: dict[str, float], threshold: float, *, lists: int, longest: int | None = None) -> list[str]:
    """A sentence for each reason why some of these means are nan; names may begin with a split, as in val/map.

    >>> tell_nan({"map": math.nan, "mrr": math.nan, "p@5": 0.2}, 2, lists=7)
    ['map and mrr are nan: none of the 7 lists has a relevant document (a label of 2 or more)']
    """
    reasons: dict[str, list[str]] = {}
    for name in (name for name, value in means.items() if math.isnan(value)):
        reasons.setdefault(why_nan(name.rpartition("/")[2], threshold, lists=lists, longest=longest), []).append(name)
    return [f"{_joined(names)} nan: {reason}" for reason, names in reasons.items()]


def _joined(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]} are" if names[1:] else f"{names[0]} is"
