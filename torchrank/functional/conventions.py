"""Named conventions of measures, each that of another tool, and `evaluate`: many measures from one sort.

Example:
    >>> scores, labels, offsets = torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3])
    >>> for name in ("default", "letor", "xgboost"):
    ...     print(name, evaluate(scores, labels, offsets, measures=["ndcg"], convention=name)["ndcg"].tolist())
    default [0.6309297535714575, nan]
    letor [1.0, 0.0]
    xgboost [0.6309297535714575, 1.0]
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional import measures
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.neighbours.votes import vote_errors
from torchrank.functional.operations import readable
from torchrank.functional.ragged import read
from torchrank.functional.ranking import Hits, Ranking, check, hits, rank_checked, to_judged, with_judged

ENTRIES_AT_ONCE = 200_000  # entries that `evaluate` ranks at once on CPU
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
        raise ValueError(f"unknown measure {text!r}: choose among {known}")
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
    if family in ("auc", "domination_error", "all_pairs_error"):
        both = f"both relevant documents (a label of {threshold:g} or more) and others"
        needs = "two documents" if longest == 1 else both if family == "auc" else "documents with different labels"
    elif family == "knn_error":
        needs = "a document"
    else:
        graded = family in ("ndcg", "dcg", "mean_ndcg", "err")
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


@takes_arrays
def evaluate(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    measures: Sequence[str] = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr"),
    convention: str = "default",
    threshold: float | None = None,
    max_label: float | None = None,
    tiebreak: Tensor | None = None,
    classes: Tensor | None = None,
    query_classes: Tensor | None = None,
    num_relevant: Tensor | None = None,
    judged: tuple[Tensor, Tensor] | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> dict[str, Tensor]:
    """All `measures` of each list in one convention, from one sort.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        measures: names of measures, such as `ndcg@10`, `map` or `p@5`; `P@5` and `precision@5` are the same.
        convention: a name in `CONVENTIONS`; `describe` explains it.
        threshold: the lowest label that counts as relevant; None takes that of the convention (MSLR in the LETOR
            convention needs 2).
        max_label: the top label of the data set, which `err` needs.
        tiebreak: among equal scores smaller numbers come first, `(N,)`; the convention `trec` needs them.
        classes: class of each entry, `(N,)`, which `knn_error@k` needs.
        query_classes: class of each query, `(Q,)`, which `knn_error@k` needs.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved, as in trec_eval;
            None: the lists hold all of them. NDCG of graded labels needs `judged` instead.
        judged: labels `(M,)` of all judged documents of each query, retrieved or not, and their offsets `(Q + 1,)`:
            relevant documents are counted and ideal orders made of them. Measures of pairs look at the list alone.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        `{name: (Q,)}`, one value per list, in float64 whatever the dtype of the scores is. Each measure has one name
        there (`p@5`), and can be looked up by the others.

    Example:
        >>> evaluate(torch.tensor([2.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]), measures=["map", "p@5"])
        {'map': tensor([0.5000], dtype=torch.float64), 'p@5': tensor([0.2000], dtype=torch.float64)}
    """
    rules = convention_of(convention, threshold)
    if isinstance(measures, str):
        raise ValueError(f'measures must be a list of names, ["{measures}"], got {measures!r}')
    parsed = (parse_measure(name, convention) for name in measures)
    wanted = {str(measure): measure for measure in parsed}
    if rules.ties == "ids" and tiebreak is None:
        raise ValueError(
            f"convention={convention!r} orders equal scores by document id, but there are no ids: give tiebreak (N,), "
            "the place of each document in the descending order of ids (RankingSet.tiebreak()), or another convention"
        )
    if max_label is None and any(measure.family == "err" for measure in wanted.values()):
        raise ValueError("err needs max_label, the top label of the data set (4 for web data, 2 for MQ2007 and MQ2008)")
    votes = {name: cast(int, measure.k) for name, measure in wanted.items() if measure.family == "knn_error"}
    if votes and (classes is None or query_classes is None):
        raise ValueError(f"{next(iter(votes))} compares classes: give classes (N,) and query_classes (Q,)")
    check(scores, labels, offsets)
    judged = None if judged is None else to_judged(judged)
    for name, given in (("num_relevant", num_relevant), ("judged", None if judged is None else judged[1][1:])):
        if given is not None and len(given) != len(offsets) - 1:
            raise ValueError(f"{name} must be of {len(offsets) - 1} lists, as the offsets are, got {len(given)}")
    parts = []
    for first, last in pieces(offsets):
        begin, end = (0, len(scores)) if (first, last) == (0, len(offsets) - 1) else read(offsets[[first, last]])
        ranking = rank_checked(
            scores[begin:end].float() if rules.float32 else scores[begin:end],
            labels[begin:end],
            offsets[first : last + 1] - begin,
            tiebreak=None if tiebreak is None else tiebreak[begin:end],
            max_length=max_length,
            num_grades=num_grades,
        )
        counted = None if num_relevant is None else num_relevant[first:last]
        if judged is not None or (counted is not None and any("ndcg" in measure.family for measure in wanted.values())):
            ranking = with_judged(ranking, counted, None if judged is None else _lists(*judged, first, last))
        parts.append(_values(ranking, rules, wanted, max_label, counted))
        if votes:
            theirs, own = cast(Tensor, classes)[begin:end], cast(Tensor, query_classes)[first:last]
            parts[-1] |= _votes(ranking, theirs, own, votes)
    return Values({name: torch.cat([part[name] for part in parts]) for name in wanted})


def _lists(values: Tensor, offsets: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The lists `first:last` of all lists."""
    if (first, last) == (0, len(offsets) - 1):
        return values, offsets
    begin, end = read(offsets[[first, last]])
    return values[begin:end], offsets[first : last + 1] - begin


def _votes(ranking: Ranking, classes: Tensor, query_classes: Tensor, votes: dict[str, int]) -> dict[str, Tensor]:
    """kNN errors at all cut-offs together; nan if scores are NaN on a device where `check` does not read them."""
    ordered = classes.index_select(0, ranking.order)
    found = vote_errors(ordered, ranking.offsets, query_classes, list(votes.values()), longest=ranking.longest)
    if not readable(ordered):
        found = torch.where(torch.isnan(ranking.unordered).any(), math.nan, found)
    return dict(zip(votes, found.unbind(1), strict=True))


def pieces(offsets: Tensor) -> list[tuple[int, int]]:
    """Ranges of lists with similar numbers of entries, about `ENTRIES_AT_ONCE` or fewer.

    In pieces temporary tensors stay in the cache and the sort takes half the time. On other devices than the CPU, where
    reading the offsets is not free, there is one piece.
    """
    lists = len(offsets) - 1
    if not readable(offsets):
        return [(0, lists)]
    total = read(offsets[-1])
    number = max(1, math.ceil(total / ENTRIES_AT_ONCE))
    steps = torch.tensor([total * piece // number for piece in range(1, number)], dtype=offsets.dtype)
    cuts = sorted({0, *read(torch.searchsorted(offsets, steps)), lists})
    return list(pairwise(cuts)) or [(0, 0)]


def _values(
    ranking: Ranking,
    rules: Convention,
    wanted: dict[str, Measure],
    max_label: float | None,
    num_relevant: Tensor | None,
) -> dict[str, Tensor]:
    values = _ndcgs(ranking, rules, wanted)
    found = hits(ranking, rules.threshold, num_relevant)
    for name in (name for name in wanted if name not in values and wanted[name].family != "knn_error"):
        values[name] = _value(ranking, found, rules, wanted[name], max_label)
    if not readable(ranking.labels):
        invalid = torch.isnan(ranking.unordered).any()
        values = {name: torch.where(invalid, math.nan, value) for name, value in values.items()}
    return values


def _ndcgs(ranking: Ranking, rules: Convention, wanted: dict[str, Measure]) -> dict[str, Tensor]:
    """NDCG at all cut-offs together."""
    values: dict[str, Tensor] = {}
    for minus in (False, True):
        names = [name for name, measure in wanted.items() if measure.family == "ndcg" and measure.minus == minus]
        if names:
            found = measures.ndcg_at(
                ranking,
                [wanted[name].k for name in names],
                gain=rules.gain,
                discount=rules.discount,
                ties=rules.ties,
                empty=0.0 if minus else rules.empty,
                short=rules.short,
            )
            values |= dict(zip(names, found, strict=True))
    return values


def _value(ranking: Ranking, found: Hits, rules: Convention, measure: Measure, max_label: float | None) -> Tensor:
    empty, k = 0.0 if measure.minus else rules.empty, measure.k
    match measure.family:
        case "dcg":
            (value,) = measures.dcg_at(ranking, [k], gain=rules.gain, discount=rules.discount, ties=rules.ties)
            return torch.where(measures.has_gain(ranking, rules.gain), value, empty)
        case "mean_ndcg":
            return measures.mean_ndcg_of(
                ranking, gain=rules.gain, discount=rules.discount, ties=rules.ties, empty=rules.empty
            )
        case "map" if rules.map_divisor == "cut" and k is not None:
            value = measures.average_precision_of(ranking, found, k, empty=empty)
            return torch.where(found.total > k, value * found.total / k, value)
        case "map":
            return measures.average_precision_of(ranking, found, k, empty=empty)
        case "p":
            return measures.precision_of(ranking, found, k, empty=empty)
        case "hit":
            return measures.hit_of(ranking, found, k, empty=empty)
        case "recall":
            return measures.recall_of(ranking, found, k, empty=empty)
        case "mrr":
            return measures.reciprocal_rank_of(found, k, empty=empty)
        case "err":
            return measures.err_of(ranking, k, max_label=cast(float, max_label), empty=empty)
        case "auc":
            return measures.auc_of(ranking, rules.threshold)
        case "domination_error":
            return measures.domination_error_of(ranking)
        case "all_pairs_error":
            return measures.all_pairs_error_of(ranking)
    raise AssertionError(measure)
