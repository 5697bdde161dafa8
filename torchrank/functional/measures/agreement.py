"""How much scores and labels agree, as two orders of the same entries."""

import math

from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.measures.pairs import pair_counts
from torchrank.functional.ragged import runs, segment_sum, wide
from torchrank.functional.ranking import Ranking, finish, rank, ratio


@takes_arrays
def kendall_tau(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Kendall's tau-b of scores and labels, from -1 to 1: pairs in the right order minus pairs in the wrong one.

    Divided by the geometric mean of the pairs with different labels and the pairs with different scores, as
    `scipy.stats.kendalltau` does. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied. Entries have no weights here.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        Tau of each list, `(Q,)`; nan where all scores or all labels are equal.

    Example:
        >>> import torch
        >>> kendall_tau(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.3333])
    """
    ranking = rank(scores, labels, offsets, list_weights=list_weights, max_length=max_length, num_grades=num_grades)
    return finish(kendall_tau_of(ranking), scores, list_weights)


def kendall_tau_of(ranking: Ranking) -> Tensor:
    wrong, tied, total = pair_counts(ranking._replace(weights=None))
    ends = ranking.offsets[1:].index_select(0, ranking.ids)
    different = wide(segment_sum(ends - runs(ranking.scores, ranking.offsets)[1], ranking.offsets))
    return ratio(total - tied - 2 * wrong, total.sqrt() * different.sqrt(), math.nan)
