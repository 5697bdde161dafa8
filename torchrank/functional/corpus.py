"""Exact search over a whole corpus of vectors: the k best documents of each query, and the ranks of given documents.

    >>> documents = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> best = search(torch.tensor([[1.0, 0.2]]), documents, k=2)
    >>> best.rows, best.scores
    (tensor([[2, 0]]), tensor([[1.2000, 1.0000]]))

Scores come block by block from one product of matrices, so memory is bounded for any size of the corpus, and
only the few documents above the k-th best score so far are kept of a block. Documents with equal scores rank in the
order of the rows, or in the order that `order` gives; those of equal vectors are equal to the bit. Every function
computes a score by the same blocks, so that the scores of two functions are equal to the bit, too.
"""

from collections.abc import Iterator
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from torchrank.errors import check_choice, check_integer
from torchrank.functional.arrays import Array, host
from torchrank.functional.lists import Given, takes_arrays

SIMILARITIES = ("inner", "cosine", "euclidean")
TILE_ROWS = 48  # a multiple of the row block of BLAS, so that a document is rounded the same wherever it stands
BLOCK_DOCUMENTS = 85 * 4 * TILE_ROWS  # a multiple of GROUP, too
BLOCK_SCORES = 2**24  # 64 MB in float32
COUNTED_SCORES = 2**18  # scores that are counted at a time on the CPU: 1 MB
GROUP = 64  # so many documents are first compared by their highest score alone


class Found(NamedTuple):
    """The best documents of each query, the best first."""

    scores: Tensor  # (Q, k)
    rows: Tensor  # (Q, k) rows of the corpus


@takes_arrays
def search(
    queries: Array,
    documents: Array,
    k: int = 100,
    *,
    similarity: str = "inner",
    factor: Array = None,
    order: Array = None,
) -> Found:
    """The k documents with the highest scores for each query, exactly.

    Args:
        queries: a vector per query, `(Q, D)`.
        documents: a vector per document, `(n, D)`; half precision is widened block by block.
        k: the number of documents for each query; all of them if there are fewer.
        similarity: "inner" is the inner product, "cosine" that of vectors of length 1 (a vector of zeros scores 0), and
            "euclidean" the negative squared distance.
        factor: `(D, R)`, compares F'q with F'd: with "euclidean" it is the Mahalanobis distance of the metric F F'.
        order: `(n,)` all rows in the order in which documents with equal scores rank, for example sorted by id.

    Returns:
        Scores and rows, `(Q, k)` each.

    Example:
        >>> search(torch.zeros(1, 2), torch.eye(2), k=2, order=torch.tensor([1, 0])).rows
        tensor([[1, 0]])
    """
    check_integer(">= 1", k=k)
    corpus = Corpus(queries, documents, similarity, factor, order)
    scores = corpus.queries.new_full((len(queries), min(k, len(documents))), -torch.inf)
    best = Found(scores, torch.zeros_like(scores, dtype=torch.int64))
    for block in corpus.blocks():
        _merge(best, block)
    return Found(corpus.similarities(best.scores), best.rows if order is None else order[best.rows])


@takes_arrays
def document_ranks(
    rows: Array,
    queries: Array,
    documents: Array,
    offsets: Array,
    *,
    similarity: str = "inner",
    factor: Array = None,
    order: Array = None,
    **given: Unpack[Given],
) -> Tensor:
    """The rank of some documents of each query among all documents of the corpus, without sorting them.

    Args:
        rows: the documents of query q are `rows[offsets[q]:offsets[q + 1]]`, `(N,)`.
        queries: a vector per query, `(Q, D)`.
        documents: a vector per document, `(n, D)`.
        offsets: where the documents of each query begin and end, `(Q + 1,)`.
        similarity: "inner", "cosine" or "euclidean", as in `search`.
        factor: `(D, R)`, as in `search`.
        order: `(n,)`, as in `search`.

    Returns:
        Ranks from 1, `(N,)`.

    Example:
        >>> documents = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> document_ranks(torch.tensor([0, 2]), torch.tensor([[1.0, 0.2]]), documents, torch.tensor([0, 2]))
        tensor([2, 1])
    """
    corpus = Corpus(queries, documents, similarity, factor, order)
    if len(offsets) != len(queries):
        raise ValueError(f"there must be a list for each of {len(queries)} queries, got {len(offsets)}")
    if host(rows) is not None and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(documents):
        raise ValueError(f"rows must be numbers of documents, 0..{len(documents) - 1}")
    rows = rows.reshape(-1)  # a column of a table has two dimensions
    place = rows if order is None else order.argsort()[rows]
    query = offsets.ids
    scores = torch.zeros(len(rows), dtype=corpus.dtype, device=queries.device)
    for block in corpus.blocks():
        pairs = block.pairs_inside(query, place)
        scores[pairs] = block.scores[query[pairs] - block.queries.start, place[pairs] - block.documents.start]
    ranks, most = torch.ones_like(place), COUNTED_SCORES if rows.device.type == "cpu" else BLOCK_SCORES
    for block in corpus.blocks():
        for pairs in block.pairs_inside(query).split(max(most // len(block.documents), 1)):
            ranks[pairs] += block.count_above(query[pairs], place[pairs], scores[pairs])
    return ranks


class Block(NamedTuple):
    """The scores of some queries for some documents, which are numbered in the order in which equal scores rank."""

    scores: Tensor  # (q, d)
    queries: range
    documents: range

    def pairs_inside(self, query: Tensor, place: Tensor | None = None) -> Tensor:
        """Which of these pairs of a query and a document the block has; without documents, which of these queries."""
        inside = (query >= self.queries.start) & (query < self.queries.stop)
        if place is not None:
            inside &= (place >= self.documents.start) & (place < self.documents.stop)
        return inside.nonzero().flatten()

    def count_above(self, query: Tensor, place: Tensor, scores: Tensor) -> Tensor:
        """How many documents of the block rank above each of these `(m,)`, given their places and scores.

        Those are the documents with a higher score, and of those with an equal score the earlier ones. A block that is
        earlier as a whole counts its equal scores as well: those above the next smaller number.
        """
        first, last = self.documents.start, self.documents.stop
        others = self.scores.index_select(0, query - self.queries.start)
        limits = torch.where(place >= last, scores.nextafter(scores.new_tensor(-torch.inf)), scores)
        counts = (others > limits[:, None]).sum(1)
        inside = ((place >= first) & (place < last)).nonzero().flatten()
        earlier = torch.arange(first, last, device=place.device) < place[inside, None]
        counts[inside] += ((others[inside] == scores[inside, None]) & earlier).sum(1)
        return counts


class Corpus:
    """Queries and documents, prepared so that a block of scores is one product of matrices."""

    def __init__(
        self, queries: Tensor, documents: Tensor, similarity: str, factor: Tensor | None, order: Tensor | None
    ):
        check_choice(SIMILARITIES, similarity=similarity)
        _check_vectors(queries, documents, factor, order)
        queries, documents = queries.detach(), documents.detach()  # the results have no gradient
        self.documents, self.order, self.similarity = documents, order, similarity
        self.dtype = torch.promote_types(torch.promote_types(queries.dtype, documents.dtype), torch.float32)
        queries = queries.to(self.dtype).contiguous()  # the same bits for any memory layout
        self.factor = None if factor is None else factor.detach().to(self.dtype)
        images = queries if self.factor is None else queries @ self.factor
        if similarity == "cosine":
            images = torch.nn.functional.normalize(images, dim=1, eps=torch.finfo(self.dtype).tiny)
        self.lengths = images.square().sum(1, keepdim=True)  # of the queries, squared
        self.queries = images if self.factor is None else images @ self.factor.T

    def blocks(self) -> Iterator[Block]:
        """All scores: blocks of documents one after another, and for each of them all queries. They share one
        buffer, so that a block must be used before the next one is requested."""
        count = max(BLOCK_SCORES // BLOCK_DOCUMENTS, 1)
        width = -(-min(BLOCK_DOCUMENTS, len(self.documents)) // TILE_ROWS) * TILE_ROWS
        memory = self.queries.new_empty(min(count, len(self.queries)) * width)
        for first in range(0, len(self.documents), BLOCK_DOCUMENTS):
            last = min(first + BLOCK_DOCUMENTS, len(self.documents))
            chosen = slice(first, last) if self.order is None else self.order[first:last]
            rows = whole_tiles(self.documents[chosen].to(self.dtype).contiguous())
            scale, shift = self._scale_and_shift(rows)
            for start in range(0, len(self.queries), count):
                part = self.queries[start : start + count]
                scores = memory[: len(part) * len(rows)].view(len(part), len(rows))
                if shift is None:
                    torch.mm(part, rows.T, out=scores)
                else:
                    torch.addmm(shift, part, rows.T, out=scores)
                scores = scores if scale is None else scores.mul_(scale)
                yield Block(scores[:, : last - first], range(start, start + len(part)), range(first, last))

    def _scale_and_shift(self, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Scale and shift of the inner products of each document, `(d,)` each."""
        if self.similarity == "inner":
            return None, None
        squares = (rows if self.factor is None else rows @ self.factor).square().sum(1)
        if self.similarity == "euclidean":
            return None, squares.div_(-2)
        return torch.where(squares > 0, squares.rsqrt(), 0.0), None

    def similarities(self, scores: Tensor) -> Tensor:
        """The similarities, given the scores of blocks, which rank documents in the same order."""
        return scores if self.similarity != "euclidean" else (2 * scores - self.lengths).clamp_(max=0.0)


def whole_tiles(rows: Tensor) -> Tensor:
    """The rows with zeros below, so that a product gives equal rows equal numbers, wherever they stand.

    >>> whole_tiles(torch.ones(50, 2)).shape
    torch.Size([96, 2])
    """
    beyond = -len(rows) % TILE_ROWS
    return torch.nn.functional.pad(rows, (0, 0, 0, beyond)) if beyond else rows


def _merge(best: Found, block: Block) -> None:
    """Update the best documents of the queries of a block with those of the block, in place."""
    scores, rows = (part[block.queries.start : block.queries.stop] for part in best)
    query, place = _candidates(block, scores)
    counts = torch.bincount(query, minlength=len(scores))
    slot = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
    shape = (len(scores), int(counts.max()))
    new_scores = scores.new_full(shape, -torch.inf).index_put_((query, slot), block.scores[query, place])
    new_rows = rows.new_zeros(shape).index_put_((query, slot), place + block.documents.start)
    # earlier documents come first, so a stable sort leaves equal scores in their order
    joint, order = torch.cat([scores, new_scores], 1).sort(dim=1, descending=True, stable=True)
    width = scores.shape[1]
    rows.copy_(torch.cat([rows, new_rows], 1).gather(1, order[:, :width]))
    scores.copy_(joint[:, :width])


def _candidates(block: Block, best: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of a block, query and column, that may be among the best, by query and then by column."""
    scores, k = block.scores, best.shape[1]
    if block.documents.start < k:  # the best are not k yet
        joint = torch.cat([best, scores], 1)
        query, place = (scores >= joint.topk(k).values[:, -1:]).nonzero(as_tuple=True)
        return query, place
    least = best[:, -1:]  # an equal score of a later document ranks below
    if beyond := -scores.shape[1] % GROUP:
        scores = torch.nn.functional.pad(scores, (0, beyond), value=-torch.inf)
    groups = scores.unflatten(1, (-1, GROUP))
    query, group = (groups.amax(2) > least).nonzero(as_tuple=True)
    which, place = (groups[query, group] > least[query]).nonzero(as_tuple=True)
    return query[which], group[which] * GROUP + place


def _check_vectors(queries: Tensor, documents: Tensor, factor: Tensor | None, order: Tensor | None) -> None:
    for name, vectors in (("queries", queries), ("documents", documents)):
        if vectors.ndim != 2 or not vectors.is_floating_point():
            actual = f"{vectors.dtype} {tuple(vectors.shape)}"
            raise ValueError(f"{name} must be vectors of floats, one per row, got {actual}")
    width = queries.shape[1]
    if width != documents.shape[1]:
        raise ValueError(f"queries have {width} numbers each, and documents {documents.shape[1]}")
    if factor is not None and (factor.ndim != 2 or len(factor) != width):
        raise ValueError(f"factor must have {width} rows, as the vectors have numbers, got {tuple(factor.shape)}")
    if order is not None and order.shape != (len(documents),):
        raise ValueError(f"order must hold each of the {len(documents)} rows once, got {tuple(order.shape)}")
    for name, vectors in (("query", queries), ("document", documents)) if host(queries) is not None else ():
        for start, part in enumerate(vectors.split(BLOCK_DOCUMENTS)):
            if not part.sum().isfinite() and not part.isfinite().all():
                row = start * BLOCK_DOCUMENTS + int((~part.isfinite()).any(1).nonzero()[0])
                raise ValueError(f"the vector of {name} {row} is not finite")
