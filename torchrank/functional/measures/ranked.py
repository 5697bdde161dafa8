"""`evaluate_ranks`: measures of whole rankings from the ranks of the judged documents alone."""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.conventions import Convention, Measure, Values, convention_of
from torchrank.functional.measures.evaluation import (
    check_max_label,
    lists_between,
    pieces,
    values_of,
    wanted_measures,
)
from torchrank.functional.operations import readable
from torchrank.functional.ragged import list_ids, longest_list, read, wide
from torchrank.functional.ranking import Ranking, check_labels, check_offsets, count_grades
from torchrank.functional.sorting import sort_keys

# the families that documents of label 0 enter by the ranks of the others alone
RANKED = ("ndcg", "dcg", "map", "p", "recall", "hit", "hits", "mrr", "err", "r_precision", "rbp", "arp")


@takes_arrays
def evaluate_ranks(
    ranks: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    num_documents: int,
    measures: Sequence[str] = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr"),
    convention: str = "default",
    threshold: float | None = None,
    max_label: float | None = None,
) -> dict[str, Tensor]:
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
    check_max_label(wanted, max_label)
    _check_size(num_documents)
    check_offsets(ranks, labels, offsets, name="ranks")
    check_labels(labels)
    ranks = _checked(ranks, num_documents)
    parts = []
    for first, last in pieces(offsets):
        some, bounds = lists_between(ranks, offsets, first, last)
        ranking = _ranking(some, lists_between(labels, offsets, first, last)[0], bounds, num_documents)
        _refuse_twice(ranking, first)
        parts.append(values_of(ranking, rules, wanted, max_label))
    return Values({name: torch.cat([part[name] for part in parts]) for name in wanted})


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


def scores_of_ranks(ranks: Tensor, num_documents: int) -> Tensor:
    """Scores in whose order documents have these ranks, `(N,)`; NaN for ranks outside of 1..num_documents.

    >>> scores_of_ranks(torch.tensor([2, 9]), 5).tolist()
    [-2.0, nan]
    """
    return torch.where((ranks >= 1) & (ranks <= num_documents), -wide(ranks), math.nan)


def _obstacle(wanted: dict[str, Measure], rules: Convention, convention: str) -> str | None:
    """Why these measures are not known from ranks, if they are not."""
    others = [name for name, measure in wanted.items() if measure.family not in RANKED]
    if others:
        return (
            f"{', '.join(others)} cannot be computed from ranks, because ties of scores or whole lists count: give all "
            f"scores to evaluate, or choose among {', '.join(RANKED)}"
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


def _check_size(num_documents: int) -> None:
    if not isinstance(num_documents, Integral) or isinstance(num_documents, bool) or num_documents < 1:
        raise ValueError(f"num_documents must be an integer >= 1, the size of the corpus, got {num_documents!r}")


def _checked(ranks: Tensor, num_documents: int) -> Tensor:
    """The ranks as int64; where numbers may be read, all of them are in 1..num_documents."""
    if len(ranks) and (ranks.is_floating_point() or ranks.dtype == torch.bool):
        raise ValueError(f"ranks must be integers from 1, got {str(ranks.dtype).removeprefix('torch.')}")
    ranks = ranks.long()
    if not readable(ranks) or len(ranks) == 0:
        return ranks
    lowest, highest = (read(bound) for bound in ranks.aminmax())
    if lowest < 1 or highest > num_documents:
        wrong = read(((ranks < 1) | (ranks > num_documents)).nonzero()[0, 0])
        raise ValueError(f"rank {read(ranks[wrong])} of entry {wrong}: ranks are 1..num_documents={num_documents}")
    return ranks


def _ranking(ranks: Tensor, labels: Tensor, offsets: Tensor, num_documents: int) -> Ranking:
    """The judged documents in rank order."""
    ids = list_ids(offsets, len(ranks))
    keys = ranks.int() if num_documents < 2**31 else ranks  # 32 bits leave room for the list: one sort
    order = sort_keys(keys, ids, lists=len(offsets) - 1, descending=False)
    return Ranking(
        order=order,
        unordered=scores_of_ranks(ranks, num_documents),
        labels=labels.index_select(0, order),
        ids=ids,
        offsets=offsets,
        longest=longest_list(offsets, len(ranks), None),
        num_grades=count_grades(labels, None),
        given=ranks.index_select(0, order),
        length=num_documents,
    )


def _refuse_twice(ranking: Ranking, first: int) -> None:
    """Refuses a rank that two documents of a list have; `first` is the number of the first list."""
    if ranking.given is None or not readable(ranking.given):
        return
    ranks, ids = ranking.given, ranking.ids
    again = (ranks[1:] == ranks[:-1]) & (ids[1:] == ids[:-1])
    if read(again.any()):
        place = read(again.nonzero()[0, 0])
        raise ValueError(
            f"rank {read(ranks[place])} comes twice in list {first + read(ids[place])}: give every judged document of "
            "a query once"
        )
