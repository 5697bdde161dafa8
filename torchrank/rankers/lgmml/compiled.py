"""The fast form of local metrics: distances and scores by GEMMs of falling inner size, in full or in low rank.

A metric is M_r = F_r F_r^T, and the distance of a document x from its anchor a_r is ||F_r^T x - F_r^T a_r||. A rotation
of the rows of [F_r^T | -F_r^T a_r], which have D+1 numbers each, changes no distance. The QR decomposition is the
rotation that makes the rows a staircase: row j is 0 before feature j. So direction j of all metrics is one GEMM of
inner size D+1-j. That is half the work of the factors themselves. The packed quadratic form needs as little, but it
takes differences of large numbers.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrank.errors import check_choice
from torchrank.files import write_atomically
from torchrank.rankers.lgmml.kernels import KERNELS

WIDTH, DIRECTIONS = 256, 16  # if there are few metrics, up to 16 directions share a GEMM of at most 256 columns
NUMBERS = {"cpu": 2**18, "cuda": 2**25}  # in an intermediate result: 1 MB per thread stays in its cache


class CompiledMetrics(nn.Module):
    """Distances from M anchors under M metrics: `factors` (M, D, k), `shifts` (M, k) = F_r^T a_r.

    `remainder` (M, D+1) is an affine function of a row that is added to the squared distance under each metric; a sum
    below 0 counts as 0.

    Example:
        >>> metrics = CompiledMetrics(torch.eye(2).expand(1, 2, 2), torch.zeros(1, 2))
        >>> metrics.distances(torch.tensor([[3.0, 4.0]]))
        tensor([[5.]])
    """

    columns: Tensor  # (blocks, D+1, directions of a block times M)
    remainder: Tensor  # (D+1, M)

    def __init__(
        self, factors: Tensor, shifts: Tensor, remainder: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ):
        super().__init__()
        rows = staircase(factors, shifts)
        count, self.rank, width = rows.shape
        self.directions = max(1, min(WIDTH // max(count, 1), self.rank, DIRECTIONS))  # in one block
        remainder = rows.new_zeros(count, width) if remainder is None else remainder
        self.register_buffer("columns", self._blocks(rows).to(dtype))
        self.register_buffer("remainder", remainder.T.to(dtype).contiguous())

    def _blocks(self, rows: Tensor) -> Tensor:  # (M, directions, D+1)
        rows = pad(rows, (0, 0, 0, -rows.shape[1] % self.directions))
        blocks: Tensor = rows.unflatten(1, (-1, self.directions))  # (M, blocks, directions of a block, D+1)
        return blocks.permute(1, 3, 2, 0).flatten(2).contiguous()

    @property
    def chunk(self) -> int:
        """The number of rows whose intermediate result stays in the cache."""
        on_host = self.columns.device.type == "cpu"
        numbers = NUMBERS["cpu"] * torch.get_num_threads() if on_host else NUMBERS["cuda"]
        return max(1, numbers // max(self.columns.shape[2], 1))

    def distances(self, x: Tensor) -> Tensor:
        """Distances (n, M) of rows (n, D)."""
        return in_chunks(self._distances, x, self.chunk)

    def _distances(self, x: Tensor) -> Tensor:
        x = pad(x.to(self.columns.dtype), (0, 1), value=1.0)
        squares = x @ self.remainder
        for number, block in enumerate(self.columns):
            first = number * self.directions  # the block is 0 before this feature
            images = x[:, first:] @ block[first:]
            for direction in images.unflatten(1, (self.directions, -1)).unbind(1):
                squares.addcmul_(direction, direction)
        return squares.clamp_(min=0).sqrt_()


class CompiledScorer(nn.Module):
    """Scores transformed rows by sum_r weights_r phi(delta_r / tau_r) + x . linear; `metrics` gives delta_r / tau_r.

    `compile_scorer` makes it; `CompiledScorer.load` reads the file that `save` wrote.
    """

    weights: Tensor  # (M,)
    linear: Tensor  # (D,)

    def __init__(self, metrics: CompiledMetrics, weights: Tensor, linear: Tensor, kernel: str, beta: float):
        super().__init__()
        self.metrics, self.kernel, self.beta = metrics, kernel, beta
        self.register_buffer("weights", weights.to(metrics.columns.dtype))
        self.register_buffer("linear", linear.to(metrics.columns.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (n,) of transformed rows (n, D), in the dtype of the scorer."""
        return in_chunks(self._score, x, self.metrics.chunk)

    def _score(self, x: Tensor) -> Tensor:
        features = KERNELS[self.kernel](self.metrics._distances(x), self.beta)
        return features @ self.weights + x.to(self.linear.dtype) @ self.linear

    def save(self, path: str | PathLike[str]) -> None:
        """Write tensors and plain values to a file; an existing file is replaced as a whole or not at all."""
        plain = {"kernel": self.kernel, "beta": self.beta, "rank": self.metrics.rank}
        write_atomically(Path(path), lambda file: torch.save(plain | {"state": self.state_dict()}, file))

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> "CompiledScorer":
        """Read a saved scorer; nothing but tensors and plain values is read from the file."""
        saved = torch.load(path, map_location=device, weights_only=True)
        state = saved["state"]
        weights, linear, columns = state["weights"], state["linear"], state["metrics.columns"]
        factors = torch.empty(len(weights), len(linear), saved["rank"], device="meta")  # shapes only, filled below
        metrics = CompiledMetrics(factors, factors[:, 0], dtype=columns.dtype)
        scorer = cls(metrics, weights, linear, saved["kernel"], saved["beta"])
        scorer.load_state_dict(state, assign=True)
        return scorer


def compile_scorer(
    factors: Tensor,  # (M, D, k)
    shifts: Tensor,  # (M, k) = F_r^T a_r
    tau: Tensor,  # (M,)
    weights: Tensor,  # (M,)
    kernel: str,
    beta: float = 2.0,
    *,
    linear: Tensor | None = None,
    rank: int | None = None,
    tolerance: float | None = None,
    mean: Tensor | None = None,
    covariance: Tensor | None = None,
    around: str = "mean",
    dtype: torch.dtype = torch.float32,
) -> CompiledScorer:
    """A scorer that computes sum_r weights_r phi(delta_r / tau_r) + x . linear, without the metrics that have weight 0.

    Args:
        factors: (M, D, k) of the metrics F_r F_r^T.
        shifts: (M, k) images of the anchors, F_r^T a_r.
        tau: (M,) scales of the distances.
        weights: (M,) weights of the metrics.
        kernel: phi, one of paper, demo, rbf, laplace and distance.
        beta: decay rate of rbf and laplace.
        linear: (D,) coefficients of a linear term; None: there is none.
        rank: number of directions of each metric that are kept, which makes the scorer faster and approximate.
        tolerance: instead of `rank`, the share of its mean squared distance from the mean that a metric may lose.
        mean: (D,) mean of the transformed rows, for `rank` and `tolerance`.
        covariance: (D, D) covariance of the transformed rows, for `rank` and `tolerance`.
        around: mean or anchor, see `truncate`.
        dtype: of the scorer.

    Example:
        >>> scorer = compile_scorer(
        ...     torch.eye(2).expand(3, 2, 2), torch.zeros(3, 2), torch.ones(3), torch.tensor([1.0, 0, 2]), "distance"
        ... )
        >>> scorer(torch.tensor([[3.0, 4.0]])), len(scorer.weights)
        (tensor([-15.]), 2)
    """
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel={kernel!r} of a compiled scorer: choose one of {', '.join(KERNELS)}")
    used = weights != 0
    factors = factors[used].double() / tau[used, None, None]
    shifts = shifts[used].double() / tau[used, None]
    remainder = None
    if rank is not None or tolerance is not None:
        factors, shifts, remainder = truncate(
            factors, shifts, rank=rank, tolerance=tolerance, mean=mean, covariance=covariance, around=around
        )
    metrics = CompiledMetrics(factors, shifts, remainder, dtype=dtype)
    linear = factors.new_zeros(factors.shape[1]) if linear is None else linear
    return CompiledScorer(metrics, weights[used], linear, kernel, beta)


def truncate(
    factors: Tensor,
    shifts: Tensor,
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    mean: Tensor | None = None,
    covariance: Tensor | None = None,
    around: str = "mean",
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (M, D, k) and shifts (M, k) of low rank, and the affine remainder (M, D+1) of the squared distances.

    Let R_r be the part of the metric that is dropped, F_r^T F_r = U diag(e) U^T, C the covariance and c the mean:
    - `around="anchor"` keeps the leading eigenvectors of the metric and no remainder:
      0 <= delta^2 - delta_k^2 <= e_{k+1} ||p - a_r||^2. This bound is poor if the anchors are far from the data.
    - `around="mean"` expands the dropped part around c, keeps its affine part and its mean tr(R_r C), and chooses the
      directions by F_r^T C F_r with eigenvalues l: the squared distance is off by tr(R_r C) - (p-c)^T R_r (p-c), and
      0 <= (p-c)^T R_r (p-c) <= l_{k+1} (p-c)^T C^-1 (p-c), wherever the anchors are.

    `tolerance` chooses the smallest k with which no metric loses more than this share of its mean squared distance from
    c, the sum of e_i times the variance along eigenvector i.

    Example:
        >>> factors = torch.diag(torch.tensor([2.0, 1.0, 0.1])).expand(1, 3, 3)
        >>> given = {"mean": torch.zeros(3), "covariance": torch.eye(3)}
        >>> truncate(factors, torch.zeros(1, 3), tolerance=0.01, **given)[0].shape
        torch.Size([1, 3, 2])
    """
    _check_truncation(factors, rank, tolerance, mean, covariance, around)
    factors, shifts = factors.double(), shifts.double()
    identity = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
    covariance = identity if covariance is None else covariance.to(factors)
    measured = identity if around == "anchor" else covariance
    rotation = torch.linalg.eigh(factors.mT @ measured @ factors).eigenvectors.flip(-1)
    factors, shifts = factors @ rotation, (shifts.unsqueeze(1) @ rotation).squeeze(1)
    spread = (factors * (covariance @ factors)).sum(1)  # (M, k) mean squared distance from c along each direction
    rank = rank if tolerance is None else _smallest_rank(spread, tolerance)
    if around == "anchor" or mean is None:
        remainder = factors.new_zeros(len(factors), len(identity) + 1)
    else:
        remainder = _affine_part(factors[:, :, rank:], shifts[:, rank:], mean.to(factors))
        remainder[:, -1] += spread[:, rank:].sum(1)
    return factors[:, :, :rank], shifts[:, :rank], remainder


def _affine_part(factors: Tensor, shifts: Tensor, centre: Tensor) -> Tensor:
    """The squared distances expanded around a point, without the quadratic part: (M, D+1) coefficients of (x, 1)."""
    offset = (factors.mT @ centre - shifts).unsqueeze(-1)  # (M, k, 1) image of the point seen from the anchor
    slope = 2 * (factors @ offset).squeeze(-1)  # (M, D)
    constant = offset.square().sum((1, 2)) - slope @ centre
    return torch.cat([slope, constant.unsqueeze(1)], 1)


def staircase(factors: Tensor, shifts: Tensor) -> Tensor:
    """Rows R (M, k, D+1) with ||R_r (x, 1)|| = ||F_r^T x - shift_r||, where row j is 0 before feature j.

    Example:
        >>> staircase(torch.tensor([[[3.0], [4.0]]]), torch.tensor([[1.0]])).abs()
        tensor([[[3., 4., 1.]]], dtype=torch.float64)
    """
    rows: Tensor = torch.linalg.qr(torch.cat([factors.mT, -shifts.unsqueeze(-1)], -1).double(), mode="r").R
    return rows


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor, rows: int) -> Tensor:
    """The function of all rows, computed in chunks; an exported graph, whose number of rows is open, takes all at once.

    Example:
        >>> in_chunks(torch.neg, torch.arange(3), 2)
        tensor([ 0, -1, -2])
    """
    if torch.compiler.is_compiling():
        return function(x)
    return torch.cat([function(part) for part in x.split(rows)])


def _smallest_rank(spread: Tensor, tolerance: float) -> int:
    lost = spread.flip(-1).cumsum(-1).flip(-1)  # (M, k): what is lost without the directions from i on
    needed = (lost > tolerance * lost[:, :1]).sum(-1)
    return int(max([1, *needed.tolist()]))


def _check_truncation(
    factors: Tensor,
    rank: int | None,
    tolerance: float | None,
    mean: Tensor | None,
    covariance: Tensor | None,
    around: str,
) -> None:
    check_choice(("mean", "anchor"), around=around)
    if (rank is None) == (tolerance is None):
        raise ValueError(f"give either rank or tolerance, got rank={rank} and tolerance={tolerance}")
    if rank is not None and not 1 <= rank <= factors.shape[2]:
        raise ValueError(f"rank must be 1 to {factors.shape[2]}, the number of directions of a metric, got {rank}")
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be in [0, 1), a share of the squared distance, got {tolerance}")
    if covariance is None and (tolerance is not None or around == "mean"):
        raise ValueError("the variance of the data along the directions is needed: give covariance=(D, D)")
    if mean is None and around == "mean":
        raise ValueError("around='mean' needs the mean of the data: give mean=(D,), or set around='anchor'")
