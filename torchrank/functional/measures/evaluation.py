"""`evaluate`: many measures in one convention, from one sort."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from torchrank.functional import measures
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.conventions import Convention, Measure, Values, convention_of, parse_measure
from torchrank.functional.neighbours.votes import vote_errors
from torchrank.functional.operations import readable
from torchrank.functional.ragged import read, wide
from torchrank.functional.ranking import (
    Hits,
    Ranking,
    check,
    check_weights,
    hits,
    rank_checked,
    to_judged,
    with_judged,
)

ENTRIES_AT_ONCE = 200_000  # entries that `evaluate` ranks at once on CPU


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
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in ideal orders; each measure says
            what that means for it. `kendall_tau` and `knn_error` have no weights.
        list_weights: importance of each list, `(Q,)`, by which its values are multiplied.
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
    wanted = wanted_measures(measures, convention)
    if rules.ties == "ids" and tiebreak is None:
        raise ValueError(
            f"convention={convention!r} orders equal scores by document id, but there are no ids: give tiebreak (N,), "
            "the place of each document in the descending order of ids (RankingSet.tiebreak()), or another convention"
        )
    check_max_label(wanted, max_label)
    votes = {name: cast(int, measure.k) for name, measure in wanted.items() if measure.family == "knn_error"}
    if votes and (classes is None or query_classes is None):
        raise ValueError(f"{next(iter(votes))} compares classes: give classes (N,) and query_classes (Q,)")
    check(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
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
            weights=None if weights is None else weights[begin:end],
        )
        counted = None if num_relevant is None else num_relevant[first:last]
        if judged is not None or (counted is not None and any("ndcg" in measure.family for measure in wanted.values())):
            ranking = with_judged(ranking, counted, None if judged is None else lists_between(*judged, first, last))
        parts.append(values_of(ranking, rules, wanted, max_label, counted))
        if votes:
            theirs, own = cast(Tensor, classes)[begin:end], cast(Tensor, query_classes)[first:last]
            parts[-1] |= _votes(ranking, theirs, own, votes)
    values = {name: torch.cat([part[name] for part in parts]) for name in wanted}
    if list_weights is not None:
        values = {name: value * wide(list_weights) for name, value in values.items()}
    return Values(values)


def wanted_measures(measures: Sequence[str], convention: str) -> dict[str, Measure]:
    """The measures by the names under which their values are given."""
    if isinstance(measures, str):
        raise ValueError(f'measures must be a list of names, ["{measures}"], got {measures!r}')
    parsed = (parse_measure(name, convention) for name in measures)
    return {str(measure): measure for measure in parsed}


def check_max_label(wanted: dict[str, Measure], max_label: float | None) -> None:
    if max_label is None and any(measure.family == "err" for measure in wanted.values()):
        raise ValueError("err needs max_label, the top label of the data set (4 for web data, 2 for MQ2007 and MQ2008)")


def lists_between(values: Tensor, offsets: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
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


def values_of(
    ranking: Ranking,
    rules: Convention,
    wanted: dict[str, Measure],
    max_label: float | None,
    num_relevant: Tensor | None = None,
) -> dict[str, Tensor]:
    """All measures of one ranking but the kNN errors, float64, `(Q,)` each."""
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
            return measures.reciprocal_rank_of(ranking, found, k, empty=empty)
        case "hits":
            return measures.hits_of(ranking, found, k, empty=empty)
        case "r_precision":
            return measures.r_precision_of(ranking, found, empty=empty)
        case "rbp":
            return measures.rbp_of(ranking, found, k, empty=empty)
        case "arp":
            return measures.arp_of(ranking, empty=empty)
        case "opa":
            return measures.opa_of(ranking)
        case "kendall_tau":
            return measures.kendall_tau_of(ranking)
        case "err":
            return measures.err_of(ranking, k, max_label=cast(float, max_label), empty=empty)
        case "auc":
            return measures.auc_of(ranking, rules.threshold)
        case "domination_error":
            return measures.domination_error_of(ranking)
        case "all_pairs_error":
            return measures.all_pairs_error_of(ranking)
    raise AssertionError(measure)
