"""Sums of the feature maps of metric and linear models, from which the cuts of MLR and SVM-map are made.

McFee & Lanckriet, ICML 2010. With the coefficients c of the most violated rankings, which sum to 0 in every list, the
sum over lists of sum_x c_x phi(q, x) is, for a metric W with scores -(q - x)' W (q - x) (their eq. 5),

    Psi = Q' (C X) + (C X)' Q - X' diag(C' 1) X,      C (Q, n) the coefficients of each list on the rows of the corpus.

The terms q q' cancel. It takes two matrix products, and no outer product for each pair. All is computed in float64,
around the mean of the rows: distances do not change, and points far from 0 keep their digits.
"""

from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.ragged import segment_sum
from torchrank.solvers.linear.scores import add_gradient
from torchrank.solvers.metric_scores import centred_rows, fills_table, gap_blocks, table_places


def add_metric_psi(batch: Batch, coefficients: Tensor, into: Tensor) -> None:
    """into (D, D) += the sum over the lists of delta psi."""
    sums, rows, weights, queries = _weighed_rows(batch, coefficients)
    cross = queries.T @ sums
    into += cross + cross.T - rows.T @ (weights[:, None] * rows)


def add_diagonal_psi(batch: Batch, coefficients: Tensor, into: Tensor) -> None:
    """into (D,) += the diagonal of the sum over the lists of delta psi."""
    sums, rows, weights, queries = _weighed_rows(batch, coefficients)
    into += 2 * (queries * sums).sum(0) - weights @ rows.square()


def add_linear_psi(batch: Batch, coefficients: Tensor, into: Tensor) -> None:
    """into (D,) += sum of c x over all entries, or of c |q - x| where the batch has query vectors."""
    if batch.queries is None:
        return add_gradient(batch, coefficients, into[None], per_topic=False)
    for entries, gaps in gap_blocks(batch, into.dtype):
        into += coefficients[entries] @ gaps


def _weighed_rows(batch: Batch, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """C X (Q, D), the rows (n, D), the sum of the coefficients of each row (n,), and the query vectors (Q, D)."""
    if not fills_table(batch):
        rows, queries = centred_rows(batch.flat())
        return segment_sum(coefficients[:, None] * rows, batch.offsets), rows, coefficients, queries
    rows, queries = centred_rows(batch)
    spread = coefficients.new_zeros(batch.num_lists * len(rows))
    spread = spread.index_add_(0, table_places(batch), coefficients).view(batch.num_lists, len(rows))
    return spread @ rows, rows, spread.sum(0), queries
