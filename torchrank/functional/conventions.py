"""Named conventions of measures, each that of another tool, and the names of measures.

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

import math
import re
from difflib import get_close_matches
from typing import NamedTuple

from torch import Tensor

from torchrank.errors import check_choice

FAMILIES = {  # measure: may it have a cut-off, may it have none
    "ndcg": (True, True),
    "mean_ndcg": (False, True),
    "dcg": (True, True),
    "map": (True, True),
    "p": (True, False),
    "recall": (True, False),
    "hit": (True, True),
    "mrr": (True, True),
    "err": (True, True),
    "auc": (False, True),
    "domination_error": (False, True),
    "all_pairs_error": (False, True),
    "opa": (False, True),
    "kendall_tau": (False, True),
    "arp": (False, True),
    "hits": (True, True),
    "r_precision": (False, True),
    "rbp": (True, True),
    "knn_error": (True, False),
}
ALIASES = {  # other names of a family; upper and lower case are the same
    "precision": "p",
    "success": "hit",
    "hit_rate": "hit",
    "recip_rank": "mrr",
    "reciprocal_rank": "mrr",
    "rr": "mrr",
    "average_precision": "map",
    "ap": "map",
    "rprec": "r_precision",
    "tau": "kendall_tau",
    "ordered_pair_accuracy": "opa",
    "average_relevance_position": "arp",
    "rank_biased_precision": "rbp",
}


class Convention(NamedTuple):
    """What a tool means by its measures. The defaults are those of this library."""

    measures: tuple[str, ...] = tuple(FAMILIES)
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


class Measure(NamedTuple):
    """A measure by its name: `ndcg@10` has the family `ndcg` and k = 10."""

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
            own = canonical(name)
        except ValueError:
            raise KeyError(name) from None
        if own == name:
            raise KeyError(name)
        return self[own]


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
        *([f"relevant {relevant}"] if set(rules.measures) - {"ndcg", "dcg", "mean_ndcg"} else []),
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


def parse_measure(text: str, convention: str = "default") -> Measure:
    """The family and the cut-off of a measure name. Refuses what the convention does not define.

    >>> parse_measure("ndcg@10")
    Measure(family='ndcg', k=10, minus=False)
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


def _parse(text: str) -> Measure:
    match = re.fullmatch(r"([a-z_]+?)(?:(?:@|_cut_|_)([1-9][0-9]*))?(-?)", str(text).lower())
    family, k, minus = match.groups() if match else ("", None, "")
    family = ALIASES.get(family, family)
    if family not in FAMILIES or not FAMILIES[family][0 if k else 1]:
        known = ", ".join(name + ("@k" if cut else "") + (f", {name}" if cut and whole else "")
                          for name, (cut, whole) in FAMILIES.items())  # fmt: skip
        typed, at, cut = str(text).lower().partition("@")
        near = () if typed in FAMILIES else get_close_matches(typed, (*FAMILIES, *ALIASES), 1)
        hint = "".join(f". Did you mean {name}{at}{cut}?" for name in near)
        raise ValueError(f"unknown measure {text!r}: choose among {known}{hint}")
    return Measure(family, int(k) if k else None, bool(minus))


def _has(convention: str, measure: Measure) -> bool:
    """Whether the convention has this family; trec_eval has no mrr with a cut-off."""
    cut_mrr = measure.family == "mrr" and measure.k is not None
    return measure.family in convention_of(convention).measures and not (convention == "trec" and cut_mrr)


def defines(convention: str, measure: str) -> bool:
    """Whether the convention defines this measure, which must be a known one.

    >>> defines("sklearn", "ndcg@5"), defines("sklearn", "map"), defines("trec", "mrr@5")
    (True, False, False)
    """
    found = _parse(measure)
    return _has(convention, found) and (convention_of(convention).minus or not found.minus)


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
    family = _parse(measure).family
    if lists == 0 or longest == 0:
        return "there are no lists" if lists == 0 else f"all {lists} lists are empty"
    if family in ("auc", "domination_error", "all_pairs_error", "opa", "kendall_tau"):
        both = f"both relevant documents (a label of {threshold:g} or more) and others"
        needs = "two documents" if longest == 1 else both if family == "auc" else "documents with different labels"
        needs += " and different scores" if family == "kendall_tau" and longest != 1 else ""
    elif family == "knn_error":
        needs = "a document"
    else:
        graded = family in ("ndcg", "dcg", "mean_ndcg", "err", "arp")
        needs = f"a relevant document (a label {'above 0' if graded else f'of {threshold:g} or more'})"
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
