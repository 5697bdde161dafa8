"""The feature transforms that rankers choose from, one or several in a row.

A ranker makes its transform from the option `transform`: see `make_transform`. Every transform computes in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.rows import (
    ALONE,
    Chunks,
    Rows,
    Share,
    all_or_none,
    column_squares,
    in_float32,
    present,
    word_counts,
)
from torchrank.data.sparse import SparseRows
from torchrank.data.state import store
from torchrank.data.transforms.base import Transform as Transform  # is in this room too
from torchrank.data.transforms.shape import REASONS, reason_of
from torchrank.data.transforms.shared import shared_rows
from torchrank.errors import DataError, check_options
from torchrank.functional.ragged import list_ids, per_entry, segment_sum

SAMPLE = 10_000  # training rows from which quantiles are taken
FEW = 2**14  # values that `searchsorted` finds faster than bisection of all values together
SMALLEST = torch.finfo(torch.float64).tiny  # square of a length
MOST_PRODUCTS = 100_000  # outputs of a quadratic transform, reached by 445 features: a row of them takes 400 kB


class Identity(Transform):
    """The rows as they are."""

    def change(self, values: Tensor, columns: Tensor | slice) -> Tensor:
        return values


class Standard(Transform):
    """Subtract the training mean of each column, divide by its standard deviation (1 if it is 0), clip to [-8, 8].

    Example:
        >>> x = torch.tensor([[1., 5.], [3., 5.]])
        >>> Standard(2).fit(x)(x, torch.tensor([0, 2]))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """

    learns = True
    sparse_refusal = "subtracting means would fill every zero. Use transform=l2, or data.sparse=false"
    clip = 8.0
    mean: Tensor  # (D,)
    deviation: Tensor  # (D,)

    def __init__(self, num_features: int):
        super().__init__(num_features)
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(num_features, dtype=torch.float64))

    def learn(self, chunks: Chunks) -> None:
        mean, squares = chunks.moments()
        variance = squares / chunks.num_rows
        store(self, mean=mean, deviation=torch.where(variance > 0, variance.sqrt(), 1.0))

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        return (x - self.mean).div_(self.deviation).clamp_(-self.clip, self.clip)


class QueryMinMax(Transform):
    """(x - min) / (max - min) within each list and column, 0 where min = max (LETOR's QueryLevelNorm).

    Example:
        >>> QueryMinMax(1)(torch.tensor([[1.], [3.], [2.], [7.]]), torch.tensor([0, 3, 4])).flatten()
        tensor([0.0000, 1.0000, 0.5000, 0.0000])
    """

    per_query = True
    sparse_refusal = "subtracting minima would fill the zeros of columns with negative values. Use data.sparse=false"

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        wide, places = x.double(), list_ids(offsets, len(x))[:, None].expand_as(x)
        start = wide.new_full((len(offsets) - 1, x.shape[1]), torch.inf)
        low = start.scatter_reduce(0, places, wide, "amin")
        spread = (-start).scatter_reduce(0, places, wide, "amax") - low
        spread = torch.where(spread > 0, spread, 1.0)
        return (wide - per_entry(low, offsets, len(x))) / per_entry(spread, offsets, len(x))


class ColumnNorm(Transform):
    """Divide each column by its 2-norm over the training rows (by 1 if that is 0).

    Example:
        >>> x = torch.tensor([[3., 0.], [4., 0.]])
        >>> ColumnNorm(2).fit(x)(x, torch.tensor([0, 2]))
        tensor([[0.6000, 0.0000],
                [0.8000, 0.0000]])
    """

    learns = True
    norm: Tensor  # (D,)

    def __init__(self, num_features: int):
        super().__init__(num_features)
        self.register_buffer("norm", torch.ones(num_features, dtype=torch.float64))

    def learn(self, chunks: Chunks) -> None:
        squares = chunks.total(column_squares)
        store(self, norm=torch.where(squares > 0, squares.sqrt(), 1.0))

    def change(self, values: Tensor, columns: Tensor | slice) -> Tensor:
        return values / self.norm[columns]


class SignedLog(Transform):
    """sign(x) log(1 + |x|).

    Example:
        >>> SignedLog(2)(torch.tensor([[0., -1.]]), torch.tensor([0, 1]))
        tensor([[ 0.0000, -0.6931]])
    """

    def change(self, values: Tensor, columns: Tensor | slice) -> Tensor:
        if not torch.is_grad_enabled():
            logs = values.double().abs().log1p()
            return torch.where(values < 0, -logs, logs)
        below, above = values.double().clamp(max=0), values.double().clamp(min=0)
        return torch.where(values < 0, -(-below).log1p(), above.log1p())  # its gradient at 0 is 1, by |x| it would be 0


class UnitLength(Transform):
    """Divide each row by its length; a row of zeros stays as it is. Distances of such rows rank as their cosines do.

    Example:
        >>> UnitLength(2)(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([0, 2]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        squares = x.double().square().sum(1, keepdim=True)
        return x.double() * torch.where(squares > 0, squares.clamp(min=SMALLEST).rsqrt(), 0.0)

    def sparse(self, x: SparseRows) -> Tensor:
        squares = segment_sum(x.values.double().square(), x.row_offsets)
        lengths = per_entry(squares.clamp(min=SMALLEST).sqrt(), x.row_offsets, len(x.values))
        return x.values.double() / lengths


class Quantile(Transform):
    """The normal score of a value's rank among the training values, linear between 1001 order statistics.

    Values that occur often (an atom at zero) get the middle of their range of ranks. Values outside the training range
    get the score of its end, so every output is finite. Learned from a seeded subsample of at most 10,000 rows.

    Example:
        >>> x = torch.tensor([[1.], [2.], [1000.]])
        >>> Quantile(1).fit(x)(x, torch.tensor([0, 3])).flatten()
        tensor([-0.9674,  0.0000,  0.9674])
    """

    learns = True
    sparse_refusal = "a normal score of zero is not zero. Use transform=log1p, or data.sparse=false"
    points = 1001
    nodes: Tensor  # (D, points) order statistics of the training values
    scores: Tensor  # (D, points) their normal scores

    def __init__(self, num_features: int):
        super().__init__(num_features)
        for name in ("nodes", "scores"):  # take their size when it is fitted
            self.register_buffer(name, torch.zeros(num_features, 0, dtype=torch.float64))

    def learn(self, chunks: Chunks) -> None:
        values = chunks.sample(SAMPLE, seed=0).T.contiguous().sort(1).values  # (D, sample)
        count = values.shape[1]
        places = torch.linspace(0, count - 1, self.points, dtype=torch.float64, device=values.device)
        nodes = values[:, places.round().long()].contiguous()
        ranks = torch.searchsorted(values, nodes) + torch.searchsorted(values, nodes, right=True)
        store(self, nodes=nodes, scores=torch.special.ndtri(ranks.double() / (2 * count)))

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        values = x.double().T.contiguous()  # (D, N)
        above = self._above(values.detach())
        low, high = (above - 1).clamp(min=0), above.clamp(max=self.points - 1)
        start = self.nodes.gather(1, low)
        gap = self.nodes.gather(1, high) - start
        share = ((values - start) / gap.masked_fill(gap <= 0, 1)).masked_fill(gap <= 0, 0)  # no gradient is 0/0
        return torch.lerp(self.scores.gather(1, low), self.scores.gather(1, high), share).T

    def _above(self, values: Tensor) -> Tensor:
        """Number of nodes that are not above each value (D, N)."""
        if values.numel() < FEW or values.device.type != "cpu":
            return torch.searchsorted(self.nodes, values, right=True)
        places = self.points.bit_length()  # bisection in step: searchsorted waits for every comparison
        nodes = torch.nn.functional.pad(self.nodes, (0, 2**places - 1 - self.points), value=torch.inf)
        above = torch.zeros_like(values, dtype=torch.int64)
        for step in (1 << place for place in reversed(range(places))):
            above += step
            above.add_(nodes.gather(1, above - 1) > values, alpha=-step)
        return above.clamp_(max=self.points)


class PCA(Transform):
    """The fewest principal components that hold a share of the training variance, not rescaled.

    The entry of largest magnitude of each component is positive. Put "standard" before it if the columns have different
    units.

    Args:
        num_features: columns of the rows.
        variance: the share of the variance to keep, above 0 and at most 1.

    Example:
        >>> x = torch.tensor([[0., 0.], [1., 1.], [2., 2.]])
        >>> PCA(2).fit(x)(x, torch.tensor([0, 3]))
        tensor([[-1.4142],
                [ 0.0000],
                [ 1.4142]])
    """

    learns = True
    sparse_refusal = "centred rows have no zeros. Use data.sparse=false"
    mean: Tensor  # (D,)
    components: Tensor  # (D, num_outputs)

    def __init__(self, num_features: int, variance: float = 0.95):
        super().__init__(num_features)
        if not 0 < variance <= 1:
            raise ValueError(f"variance of pca must be > 0 and <= 1, got {variance}")
        self.variance = variance
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("components", torch.zeros(num_features, 0, dtype=torch.float64))

    @property
    def num_outputs(self) -> int:
        return self.components.shape[1]

    def learn(self, chunks: Chunks) -> None:
        mean, scatter = chunks.moments(power=2)
        eigenvalues, vectors = torch.linalg.eigh(scatter)
        eigenvalues, vectors = eigenvalues.flip(0).clamp(min=0), vectors.flip(1)
        missing = eigenvalues.sum() - eigenvalues.cumsum(0)  # variance left out by the first 1, 2, ... components
        allowed = (1 - self.variance + 1e-12) * eigenvalues.sum()
        vectors = vectors[:, : int((missing > allowed).sum()) + 1]
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        store(self, mean=mean, components=vectors * largest.sign())

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        return (x - self.mean) @ self.components


class Quadratic(Transform):
    """All x_i, then x_i x_j for i < j, then x_i^2: C(D, 2) + 2 D outputs (Banerjee et al. 2009, section 4.3).

    Example:
        >>> Quadratic(2)(torch.tensor([[2., 5.]]), torch.tensor([0, 1]))
        tensor([[ 2.,  5., 10.,  4., 25.]])
    """

    sparse_refusal = "it multiplies all pairs of columns. Use data.sparse=false"
    pairs: Tensor  # (2, D (D - 1) / 2)

    def __init__(self, num_features: int):
        super().__init__(num_features)
        if self.num_outputs > MOST_PRODUCTS:
            raise ValueError(
                f"quadratic would make {self.num_outputs:,} features of {num_features}, more than {MOST_PRODUCTS:,}: "
                "select features first"
            )
        pairs = torch.triu_indices(num_features, num_features, offset=1)
        self.register_buffer("pairs", pairs, persistent=False)

    @property
    def num_outputs(self) -> int:
        return self.num_features * (self.num_features - 1) // 2 + 2 * self.num_features

    def learn(self, chunks: Chunks) -> None:
        largest = float(chunks.total(lambda rows: rows.abs().max(), torch.maximum))
        if largest**2 > torch.finfo(torch.float32).max:
            raise DataError(f"the square of {largest:.3g} overflows float32: put 'standard' or 'l2' before 'quadratic'")

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        return torch.cat((x, x[:, self.pairs[0]] * x[:, self.pairs[1]], x * x), 1)


class Singhal(Transform):
    """Pivoted tf-idf of word counts c > 0: idf (1 + ln c) / (1 + ln mean c) / (1 - slope + slope u / mean u).

    Singhal, Buckley & Mitra, "Pivoted document length normalization", SIGIR 1996. u is the number of different words of
    a document and mean c the mean of their counts; idf = ln(documents / documents with the word) and the mean of u are
    those of the training documents. A word that occurs there fewer than `min_count` times is not in the vocabulary: it
    becomes 0 and does not count in u and mean c.

    Args:
        num_features: words.
        slope: how much long documents are scaled down, from 0 (not at all) to 1.
        min_count: occurrences that a word needs in the training documents.
    """

    learns = True
    known: Tensor  # (D,) 1 for a word of the vocabulary
    idf: Tensor  # (D,) 0 for one that is not in it
    pivot: Tensor  # () mean of u

    def __init__(self, num_features: int, slope: float = 0.3, min_count: int = 2):
        super().__init__(num_features)
        if not 0 <= slope <= 1 or min_count < 1:
            found = f"slope={slope} and min_count={min_count}"
            raise ValueError(f"singhal needs a slope >= 0 and <= 1 and a min_count >= 1, got {found}")
        self.slope, self.min_count = slope, min_count
        for name in ("known", "idf"):
            self.register_buffer(name, torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("pivot", torch.ones((), dtype=torch.float64))

    def learn(self, chunks: Chunks) -> None:
        counts, documents = chunks.total(word_counts)
        known = ((counts >= self.min_count) & (documents > 0)).double()
        idf = torch.where(known > 0, (chunks.num_rows / documents).log(), 0.0)
        words = chunks.total(lambda rows: (present(rows) @ known).sum())
        if words == 0:
            raise DataError(f"no word occurs {self.min_count} times in {chunks.num_rows} documents: lower min_count")
        store(self, known=known, idf=idf, pivot=words / chunks.num_rows)

    def scale(self, rows: Rows) -> Tensor:
        """The factor of each document (N,)."""
        words = (present(rows) @ self.known).clamp(min=1)  # an empty document has nothing to scale
        mean = (rows.to(dtype=torch.float64) @ self.known) / words
        return 1 / ((1 + mean.clamp(min=1).log()) * (1 - self.slope + self.slope * words / self.pivot))

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        return self.scale(x)[:, None] * self.change(x, slice(None))

    def sparse(self, x: SparseRows) -> Tensor:
        scale = torch.repeat_interleave(self.scale(x), x.row_offsets.diff(), output_size=len(x.values))
        return scale * self.change(x.values, x.columns)

    def change(self, values: Tensor, columns: Tensor | slice) -> Tensor:
        counts = torch.where(values > 0, values.double(), 1.0)  # the logarithm of 0 would have no gradient
        return self.idf[columns] * torch.where(values > 0, 1 + counts.log(), 0.0)


class Chain(Transform):
    """Transforms one after another, each fitted on the output of the one before it.

    Args:
        steps: the transforms, at least one; each takes as many columns as the one before it returns.
    """

    steps: Any  # nn.ModuleList of Transform

    def __init__(self, steps: Sequence[Transform]):
        super().__init__(steps[0].num_features)
        self.steps = nn.ModuleList(steps)
        self.per_query = any(step.per_query for step in steps)
        self.sparse_refusal = next((step.sparse_refusal for step in steps if step.sparse_refusal), "")
        self.fitted = all(step.fitted for step in steps)

    @property
    def num_outputs(self) -> int:
        return int(self.steps[-1].num_outputs)

    def learn(self, chunks: Chunks) -> None:
        for number, step in enumerate(self.steps, 1):
            if number == len(self.steps) or type(step).learn is not Transform.learn:  # others read for a later step
                step.learn(chunks)
            step.fitted = True
            chunks = chunks.through(step, step.num_outputs)

    def forward(self, x: Rows, offsets: Tensor) -> Rows:
        """The rows stay in float64 from step to step and are rounded once: as in `RankingSet.to`, bit for bit."""
        wide = x.to(dtype=torch.float64)
        for step in self.steps:
            wide = step(wide, offsets)
        return wide.to(dtype=x.dtype)


class OneOf(Transform):
    """One of several transforms, all of them fitted: the first, until a ranker sets `chosen` to the name of another
    one.

    Args:
        num_features: columns of the rows.
        names: of the transforms, keys of `TRANSFORMS`; all must return as many columns as they take.
    """

    learns = True
    options: Any  # nn.ModuleDict of Transform, by name

    def __init__(self, num_features: int, names: Sequence[str]):
        super().__init__(num_features)
        self.options = nn.ModuleDict({name: TRANSFORMS[name](num_features) for name in names})
        self.chosen = names[0]
        self.sparse_refusal = next((each.sparse_refusal for each in self.options.values()), "")

    def check_lists(self, *, shared: bool, vectors: bool) -> None:
        self.options[self.chosen].check_lists(shared=shared, vectors=vectors)

    def learn(self, chunks: Chunks) -> None:
        for option in self.options.values():
            option.learn(chunks)
            option.fitted = True

    def forward(self, x: Rows, offsets: Tensor) -> Rows:
        rows: Rows = self.options[self.chosen](x, offsets)
        return rows

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.fitted, list(self.options).index(self.chosen)])

    def set_extra_state(self, state: Tensor) -> None:
        self.fitted, self.chosen = bool(state[0]), list(self.options)[int(state[1])]


class Auto(OneOf):
    """Standard or quantile as the training rows suggest, by a rule that looks at a sample of whole lists.

    Features that are normalised by query, or nearly bell-shaped in nine of ten columns, are standardised; all others
    (heavy tails, counts, atoms, mixed scales) get normal scores. Rows that belong to no list are standardised, sparse
    rows stay as they are. What was chosen, and why, is `told`.

    Example:
        >>> x = torch.linspace(-4, 4, 200)[:, None].exp()
        >>> Auto(1).fit(x, torch.tensor([0, 100, 200])).told
        'quantile (auto: the features are neither normalised by query nor bell-shaped)'
    """

    def __init__(self, num_features: int):
        super().__init__(num_features, ("standard", "quantile", "none"))
        self.sparse_refusal, self.vectors, self.reason = "", False, "few"

    def fit(self, x: Rows, offsets: Tensor | None = None, **options: Any) -> Transform:
        self.sparse_refusal = ""  # that of an earlier choice
        return super().fit(x, offsets, **options)

    def learn(self, chunks: Chunks) -> None:
        self.reason = reason_of(chunks, self.vectors)
        self.chosen = REASONS[self.reason][0]
        option = self.options[self.chosen]
        option.learn(chunks)
        option.fitted, self.sparse_refusal = True, option.sparse_refusal

    @property
    def told(self) -> str:
        """What was chosen, and why."""
        return f"{self.chosen} (auto: {REASONS[self.reason][1]})"

    def get_extra_state(self) -> Tensor:
        return torch.cat((super().get_extra_state(), torch.tensor([list(REASONS).index(self.reason)])))

    def set_extra_state(self, state: Tensor) -> None:
        super().set_extra_state(state)
        self.reason = list(REASONS)[int(state[2])]
        self.sparse_refusal = self.options[self.chosen].sparse_refusal if self.fitted else ""


TRANSFORMS = {
    "none": Identity,
    "standard": Standard,
    "query_minmax": QueryMinMax,
    "l2": ColumnNorm,
    "unit": UnitLength,
    "log1p": SignedLog,
    "quantile": Quantile,
    "pca": PCA,
    "quadratic": Quadratic,
    "singhal": Singhal,
}


def make_transform(option: str | Mapping[str, Any] | Sequence[Any] | None, num_features: int) -> Transform:
    """The transform that the option `transform` of a ranker describes.

    Args:
        option: a name of `TRANSFORMS`; or a mapping with the `name` and options of the transform; or a list of these,
            which makes a chain. None is "none"; "auto" is standard or quantile, as the training rows suggest.
        num_features: columns of the rows.

    Returns:
        A transform, to be fitted on training rows.

    Example:
        >>> make_transform(["standard", {"name": "pca", "variance": 0.9}], 3).fit(torch.eye(3)).num_outputs
        2
    """
    if option is None or isinstance(option, str):
        option = {"name": option or "none"}
    if isinstance(option, Mapping):
        options = dict(option)
        name = options.pop("name", None)
        if name != "auto" and name not in TRANSFORMS:
            raise ValueError(f"unknown transform={name!r}: choose one of {', '.join(TRANSFORMS)}")
        make = Auto if name == "auto" else TRANSFORMS[name]
        check_options(f"transform {name}", make, options, ("num_features",))
        return make(num_features, **options)
    if not isinstance(option, Sequence):
        raise ValueError(f"transform must be a name, a mapping with a name and options, or a list of these: {option!r}")
    steps: list[Transform] = []
    for part in option:
        if steps and steps[-1].num_outputs == 0:
            raise ValueError("pca must be the last transform of a chain: its number of outputs depends on the data")
        steps.append(make_transform(part, steps[-1].num_outputs if steps else num_features))
    return Chain(steps) if steps else Identity(num_features)


@torch.no_grad()
def transform_rows(
    x: Rows,
    offsets: Tensor | None,
    device: torch.device | str,
    transform: Transform | None,
    share: Share = ALONE,
) -> Any:
    """The rows in float32 on a device, after a fitted transform that is applied to a chunk of lists at a time.

    Args:
        x: (n, D) rows. Sparse rows stay sparse: a transform changes their stored values only.
        offsets: (Q + 1,) the lists of the rows; None if they belong to no list (a shared corpus, query vectors).
        device: of the result.
        transform: None leaves the rows as they are.
        share: of this process, if all processes call this together: on the CPU of one machine each transforms its share
            of dense rows, and all have the result in the same memory.
    """
    if transform is None or isinstance(transform, Identity):
        return in_float32(x).to(device=device)
    if isinstance(x, SparseRows):
        return _change_values(x.to(device), transform)
    chunks = Chunks(x, offsets, device, x.shape[1]).through(transform, transform.num_outputs)
    together = share.world > 1 and torch.device(device).type == "cpu"
    if together and (rows := shared_rows(len(x), transform.num_outputs, share)) is not None:
        with all_or_none(share):
            chunks.write(rows, share)
        return rows
    rows = torch.empty(len(x), transform.num_outputs, dtype=torch.float32, device=device)
    chunks.write(rows)
    return rows


def _change_values(x: SparseRows, transform: Transform) -> SparseRows:
    values, start = torch.empty(len(x.values), dtype=torch.float32, device=x.device), 0
    for _, block in x.blocks():
        changed = transform(block.to(dtype=torch.float64), one_list(block))
        values[start : start + len(block.values)] = changed.values
        start += len(block.values)
    return x.with_values(values)


def transform_batch(transform: Transform, batch: Batch) -> Batch:
    """The batch with its rows, and its query vectors if it has them, after the transform."""
    transform.check_lists(shared=batch.index is not None, vectors=batch.queries is not None)
    x = transform(batch.x, batch.offsets if batch.index is None else one_list(batch.x))
    queries = None if batch.queries is None else transform(batch.queries, one_list(batch.queries))
    return batch._replace(x=x, queries=queries)


def one_list(rows: Rows) -> Tensor:
    """Offsets of rows that belong to no list, as if they were one list."""
    return torch.tensor([0, len(rows)], device=rows.device)
