"""Measures of rankings: one value per list, `(Q,)`.

Lists are flat: `scores` and `labels` hold the entries of all lists one after another, and list q is
`offsets[q]:offsets[q + 1]`. Two queries, with three and with two documents:

    >>> import torch
    >>> from torchrank.functional import evaluate, ndcg
    >>> scores = torch.tensor([0.2, 1.5, 0.7, 3.0, 1.0])
    >>> labels = torch.tensor([0, 2, 1, 0, 1])
    >>> offsets = torch.tensor([0, 3, 5])
    >>> ndcg(scores, labels, offsets, k=10)
    tensor([1.0000, 0.6309])

Many measures at once, from one sort and in the convention of another tool, are the work of `evaluate`:

    >>> values = evaluate(scores, labels, offsets, measures=["ndcg@10", "map"], convention="letor")
    >>> {name: value.mean().item() for name, value in values.items()}
    {'ndcg@10': 0.0, 'map': 0.75}

(In the LETOR convention NDCG@10 of a list with fewer than ten documents is 0.)

Higher scores come first; equal scores keep their order. Every measure is a row of `MEASURES`: a sort (`rank`) and a
function `*_of` of the labels in rank order; `evaluate` calls these functions on one sort. Sums are computed in float64;
the result has the dtype of the scores (float32 for half precision). A list without relevant entries has the value
`empty`, by default nan, which `nanmean` leaves out. NaN scores are an error on CPU; on other devices, where reading
them would synchronise, they make the whole result nan. `weights` of entries multiply gains, `list_weights` values.
"""

from torchrank.functional.conventions import MEASURES as MEASURES
from torchrank.functional.measures import graded as graded  # and the others: each fills its rows of the table

# isort: split
from torchrank.functional.measures import binary as binary
from torchrank.functional.measures import pairs as pairs
