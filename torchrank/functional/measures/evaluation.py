"""`evaluate` and `evaluate_ranks`: many measures in one convention, from one sort of scores or from ranks alone."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.conventions import MEASURES, Convention, MeasureName, Values, convention_of, parse_measure
from torchrank.functional.lists import Given, Lists, check_scores, check_weights, takes_arrays
from torchrank.functional.ranking import Ranking, judged_lists, rank

ENTRIES_AT_ONCE = 200_000  # entries that `evaluate` ranks at once on CPU
USUAL = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr")


@takes_arrays
def evaluate(
    scores: Array, labels: Array, offsets: Array = None, *, measures: Sequence[str] = USUAL,
    convention: str = "default", threshold: float | None = None, max_label: float | None = None,
    tiebreak: Array = None, classes: Array = None, query_classes: Array = None, num_relevant: Array = None,
    judged: tuple[Array, Array] | None = None, weights: Array = None, list_weights: Array = None,
    **given: Unpack[Given],
) -> dict[str, Tensor]:  # fmt: skip
    """All `measures` of each list in one convention, from one sort.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        measures: names of measures, such as `ndcg@10`, `map` or `p@5`; `P@5` and `precision@5` are the same.
        convention: a name in `CONVENTIONS`; `describe` explains it.
        threshold: the lowest label that counts as relevant; None takes that of the convention (MSLR in the LETOR
            convention needs 2).
        max_label: the top label of the data set, which `err` needs.
        tiebreak: among equal scores smaller numbers come first, `(N,)`; the convention `trec` needs them.
        classes: class of each entry, `(N,)`, which `knn_error@k` needs.
        query_classes: class of each query, `(Q,)`, which `knn_error@k` needs.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`, as in trec_eval;
            None: the lists hold all of them. NDCG of graded labels needs `judged` instead.
        judged: labels `(M,)` of all judged documents of each query, retrieved or not, and their offsets `(Q + 1,)`:
            relevant documents are counted and ideal orders made of them. Measures of pairs look at the list alone.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in ideal orders; each measure says
            what that means for it. `kendall_tau` and `knn_error` have no weights.
        list_weights: importance of each list, `(Q,)`, by which its values are multiplied.

    Returns:
        `{name: (Q,)}`, one value per list, in float64 whatever the dtype of the scores is. Each measure has one name
        there (`p@5`), and can be looked up by the others.

    Example:
        >>> evaluate(torch.tensor([2.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]), measures=["map", "p@5"])
        {'map': tensor([0.5000], dtype=torch.float64), 'p@5': tensor([0.2000], dtype=torch.float64)}
    """
    lists: Lists = offsets
    rules, wanted = convention_of(convention, threshold), wanted_measures(measures, convention)
    if rules.ties == "ids" and tiebreak is None:
        raise ValueError(
            f"convention={convention!r} orders equal scores by document id, but there are no ids: give tiebreak (N,), "
            "the place of each document in the descending order of ids (RankingSet.tiebreak()), or another convention"
        )
    options = {"max_label": max_label, "classes": classes, "query_classes": query_classes}
    check_options_of(wanted, options)
    if scores.is_floating_point():
        check_scores(scores)
    if list_weights is not None:
        check_weights("list_weights", list_weights, len(lists), "list")
    best = None if judged is None else judged_lists(judged, lists)
    if num_relevant is not None and len(num_relevant) != len(lists):
        raise ValueError(f"num_relevant must be of {len(lists)} lists, as the offsets are, got {len(num_relevant)}")
    parts = []
    for entries, rows, part in pieces(lists):
        ranking = rank(
            scores[entries].float() if rules.float32 else scores[entries],
            labels[entries],
            part,
            tiebreak=None if tiebreak is None else tiebreak[entries],
            weights=None if weights is None else weights[entries],
            num_relevant=None if num_relevant is None else num_relevant[rows],
        )
        ranking.judged = best if best is None or rows == slice(None) else _between(*best, rows)
        if classes is not None and query_classes is not None:
            options |= {"classes": classes[entries], "query_classes": query_classes[rows]}
        parts.append(_values(ranking, rules, wanted, options))
    values, factor = _joined(parts, wanted), None if list_weights is None else wide(list_weights)
    return values if factor is None else Values({name: value * factor for name, value in values.items()})


@takes_arrays
def evaluate_ranks(
    ranks: Array, labels: Array, offsets: Array = None, *, num_documents: int, measures: Sequence[str] = USUAL,
    convention: str = "default", threshold: float | None = None, max_label: float | None = None,
    **given: Unpack[Given],
) -> dict[str, Tensor]:  # fmt: skip
    """All `measures` of rankings of a whole corpus, from the ranks of the judged documents of each query.

    The values are those of `evaluate` on the lists of all documents, in which those without a judgement have label 0.
    Time and memory depend on the number of judged documents alone.

    Args:
        ranks: rank of each judged document among all documents of its query, `(N,)`, from 1, in any order;
            `document_ranks` finds them.
        labels: relevance label of each judged document, `(N,)`; those of label 0 may be left out.
        offsets: where the judged documents of each query begin and end, `(Q + 1,)`.
        num_documents: the number of documents that every query ranks.
        measures: names of measures, as in `evaluate`: ndcg, dcg, map, p, recall, hit, hits, mrr, err, r_precision, rbp
            and arp. The others need the scores or the whole lists.
        convention: a name in `CONVENTIONS` in which scores are neither averaged over ties nor rounded: default, letor
            or lightgbm.
        threshold: the lowest label that counts as relevant, above 0; None takes that of the convention.
        max_label: the top label of the data set, which `err` needs.

    Returns:
        `{name: (Q,)}`, one value per query, in float64, by the names that `evaluate` gives them. Ranks that are wrong
        are refused on the CPU; elsewhere those outside of 1..num_documents make everything nan.

    Example:
        >>> ranks, labels, offsets = torch.tensor([4, 1, 90]), torch.tensor([1, 2, 1]), torch.tensor([0, 2, 3])
        >>> evaluate_ranks(ranks, labels, offsets, num_documents=1_000_000, measures=["map", "recall@10"])
        {'map': tensor([0.7500, 0.0111], dtype=torch.float64), 'recall@10': tensor([1., 0.], dtype=torch.float64)}
    """
    rules, wanted = convention_of(convention, threshold), wanted_measures(measures, convention)
    if reason := _obstacle(wanted, rules, convention):
        raise ValueError(reason)
    check_options_of(wanted, options := {"max_label": max_label})
    if not isinstance(num_documents, Integral) or isinstance(num_documents, bool) or num_documents < 1:
        raise ValueError(f"num_documents must be an integer >= 1, the size of the corpus, got {num_documents!r}")
    ranks, parts = _checked(ranks, num_documents), []
    for entries, rows, part in pieces(offsets):
        ranking = _ranking(ranks[entries], labels[entries], part, num_documents)
        _refuse_twice(ranking, rows.start or 0)
        parts.append(_values(ranking, rules, wanted, options))
    return _joined(parts, wanted)


def known_from_ranks(measures: Sequence[str], convention: str = "default", threshold: float | None = None) -> bool:
    """Whether `evaluate_ranks` can compute all these measures; if not, `evaluate` can from the lists of all documents.

    Args:
        measures: names of measures, which the convention must define.
        convention: a name in `CONVENTIONS`.
        threshold: the lowest label that counts as relevant; None takes that of the convention.

    Returns:
        True or False.

    Example:
        >>> known_from_ranks(["ndcg@10", "map"]), known_from_ranks(["auc"]), known_from_ranks(["map"], "trec")
        (True, False, False)
    """
    return _obstacle(wanted_measures(measures, convention), convention_of(convention, threshold), convention) is None


def wanted_measures(measures: Sequence[str], convention: str) -> dict[str, MeasureName]:
    """The measures by the names under which their values are given."""
    if isinstance(measures, str):
        raise ValueError(f'measures must be a list of names, ["{measures}"], got {measures!r}')
    parsed = [parse_measure(name, convention) for name in measures]
    return {str(measure): measure for measure in parsed}


def check_options_of(wanted: dict[str, MeasureName], options: dict[str, Any]) -> None:
    """Refuses measures that need an option which was not given, such as the top label for ERR."""
    missing = {name for name, value in options.items() if value is None}
    for name, measure in wanted.items():
        row = MEASURES[measure.family]
        if not missing.isdisjoint(row.options):
            raise ValueError(row.asks.format(name=name) or f"{name} needs {', '.join(missing & {*row.options})}")


def pieces(lists: Lists) -> Iterator[tuple[slice, slice, Lists]]:
    """Parts of about `ENTRIES_AT_ONCE` entries or fewer: which entries, which lists, and these lists by themselves.

    In pieces temporary tensors stay in the cache and the sort takes half the time. On other devices than the CPU, where
    reading the offsets is not free, there is one piece.
    """
    known, total = host(lists.offsets), lists.num_entries
    if known is None or total <= ENTRIES_AT_ONCE:
        yield slice(None), slice(None), lists
        return
    number = math.ceil(total / ENTRIES_AT_ONCE)
    steps = [total * piece // number for piece in range(1, number)]
    cuts = sorted({0, *np.searchsorted(known, steps).tolist(), len(lists)})
    for first, last in pairwise(cuts):
        begin, end = int(known[first]), int(known[last])
        yield slice(begin, end), slice(first, last), _part(lists, first, last, begin, end)


def _part(lists: Lists, first: int, last: int, begin: int, end: int) -> Lists:
    return Lists(lists.offsets[first : last + 1] - begin, end - begin, grades=lists.grades)


def _between(labels: Tensor, lists: Lists, rows: slice) -> tuple[Tensor, Lists]:
    """Some of the lists of judged documents."""
    begin, end = (int(lists.offsets[place]) for place in (rows.start, rows.stop))
    return labels[begin:end], _part(lists, rows.start, rows.stop, begin, end)


def _values(
    ranking: Ranking, rules: Convention, wanted: dict[str, MeasureName], options: dict[str, Any]
) -> dict[str, Tensor]:
    """All measures of one ranking, float64, `(Q,)` each; those of one row of `MEASURES` together."""
    options = rules._asdict() | options
    groups: dict[tuple[str, bool], list[str]] = {}
    for name, measure in wanted.items():
        groups.setdefault((measure.family, measure.minus), []).append(name)
    values: dict[str, Tensor] = {}
    for (family, minus), names in groups.items():
        given = options | {"empty": 0.0} if minus else options
        cuts = [wanted[name].k for name in names]
        values |= zip(names, MEASURES[family].values(ranking, cuts, given), strict=True)
    if host(ranking.labels) is None:
        invalid = torch.isnan(ranking.unordered).any()
        return {name: torch.where(invalid, math.nan, value) for name, value in values.items()}
    return values


def _joined(parts: list[dict[str, Tensor]], wanted: dict[str, MeasureName]) -> Values:
    if len(parts) == 1:
        return Values({name: parts[0][name] for name in wanted})
    return Values({name: torch.cat([part[name] for part in parts]) for name in wanted})


# ------------------------------------------------------------------------------------------------- from ranks


def scores_of_ranks(ranks: Tensor, num_documents: int) -> Tensor:
    """Scores in whose order documents have these ranks, `(N,)`; NaN for ranks outside of 1..num_documents.

    >>> scores_of_ranks(torch.tensor([2, 9]), 5).tolist()
    [-2.0, nan]
    """
    return torch.where((ranks >= 1) & (ranks <= num_documents), -wide(ranks), math.nan)


def _obstacle(wanted: dict[str, MeasureName], rules: Convention, convention: str) -> str | None:
    """Why these measures are not known from ranks, if they are not."""
    others = [name for name, measure in wanted.items() if not MEASURES[measure.family].from_ranks]
    if others:
        return (
            f"{', '.join(others)} cannot be computed from ranks, because ties of scores or whole lists count: give all "
            f"scores to evaluate, or choose among {', '.join(name for name, row in MEASURES.items() if row.from_ranks)}"
        )
    if rules.ties != "stable" or rules.float32:
        how = {"average": "averages over equal scores", "ids": "orders equal scores by document id"}
        return (
            f"convention={convention!r} {how.get(rules.ties, 'rounds scores to float32')}, but ranks are given, in "
            "which ties are decided: give all scores to evaluate, or use another convention"
        )
    if rules.threshold <= 0:
        return f"threshold must be above 0, the label of documents without a judgement, got {rules.threshold}"
    return None


def _checked(ranks: Tensor, num_documents: int) -> Tensor:
    """The ranks as int64; where numbers may be read, all of them are in 1..num_documents."""
    if len(ranks) and (ranks.is_floating_point() or ranks.dtype == torch.bool):
        raise ValueError(f"ranks must be integers from 1, got {str(ranks.dtype).removeprefix('torch.')}")
    ranks = ranks.long()
    known = host(ranks)
    if known is not None and (wrong := (known < 1) | (known > num_documents)).any():
        place = int(wrong.argmax())
        raise ValueError(f"rank {known[place]} of entry {place}: ranks are 1..num_documents={num_documents}")
    return ranks


def _ranking(ranks: Tensor, labels: Tensor, lists: Lists, num_documents: int) -> Ranking:
    """The judged documents in rank order."""
    keys = ranks.int() if num_documents < 2**31 else ranks  # 32 bits leave room for the list: one sort
    order = lists.order(keys, descending=False)
    return Ranking(
        order,
        scores_of_ranks(ranks, num_documents),
        labels.index_select(0, order),
        lists,
        given=ranks.index_select(0, order),
        length=num_documents,
    )


def _refuse_twice(ranking: Ranking, first: int) -> None:
    """Refuses a rank that two documents of a list have; `first` is the number of the first list."""
    if ranking.given is None or (ranks := host(ranking.given)) is None:
        return
    ids = ranking.lists.ids.numpy()
    again = (ranks[1:] == ranks[:-1]) & (ids[1:] == ids[:-1])
    if again.any():
        place = int(again.argmax())
        raise ValueError(
            f"rank {ranks[place]} comes twice in list {first + ids[place]}: give every judged document of a query once"
        )
