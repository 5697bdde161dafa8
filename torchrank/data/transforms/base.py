"""The base class of feature transforms: fitted on training rows, applied to whole lists, saved with the ranker."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrank.data.rows import ALONE, Chunks, Rows, Share
from torchrank.data.sparse import SparseRows
from torchrank.data.state import take_sizes
from torchrank.errors import DataError, NotFittedError


class Transform(nn.Module):
    """A function of features that is fitted on training rows.

    `transform.fit(x, offsets)` learns, `transform(x, offsets)` applies. It computes in float64 and returns the dtype of
    its input; sparse rows stay sparse. A subclass sets its buffers in `learn` and defines `dense` and `sparse`, or
    `change` alone if it works number by number.

    Args:
        num_features: columns of the rows.

    Attributes:
        learns: whether it must be fitted before use.
        per_query: whether it looks at whole lists; to all others `offsets` do not matter.
        sparse_refusal: why it cannot take sparse rows, and what to do; empty if it can.
        num_outputs: columns of the result; 0 until it is fitted where the data decides.

    Example:
        >>> from torchrank.data import make_transform
        >>> x = torch.tensor([[1., 5.], [3., 5.]])
        >>> make_transform("standard", 2).fit(x)(x, torch.tensor([0, 2]))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """

    learns = False
    per_query = False
    sparse_refusal = ""

    def __init__(self, num_features: int):
        super().__init__()
        self.num_features, self.fitted = num_features, not self.learns
        self.register_load_state_dict_pre_hook(take_sizes)

    @property
    def num_outputs(self) -> int:
        """Columns of the transformed rows."""
        return self.num_features

    def fit(
        self,
        x: Rows,
        offsets: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
        share: Share = ALONE,
    ) -> Transform:
        """Learn from all rows, a chunk at a time; the result is the same on every process.

        Args:
            x: (n, D) training rows.
            offsets: (Q + 1,) where each list begins and ends; None: the rows are a shared corpus.
            device: where to compute.
            share: which chunks this process reads, if all processes fit the transform together.

        Returns:
            The transform itself.
        """
        self._check(x)
        if len(x) == 0:
            raise DataError("a transform needs training rows, got 0 rows")
        home = next((buffer.device for buffer in self.buffers()), device)
        self.to(device, torch.float64).learn(Chunks(x, offsets, device, self.num_features, share=share))
        self.fitted = True
        return self.to(home)

    def check_lists(self, *, shared: bool, vectors: bool) -> None:
        """Refuse what belongs to no list, rows of a shared corpus and query vectors, if the transform is per query."""
        if self.per_query and (shared or vectors):
            raise DataError(
                f"{type(self).__name__} works inside each list, but these lists share rows or have query vectors: use "
                "another transform, such as standard"
            )

    def forward(self, x: Rows, offsets: Tensor) -> Rows:
        self._check(x)
        if not self.fitted:
            raise NotFittedError(f"{type(self).__name__} is not fitted: call fit(x, offsets) on training rows first")
        if isinstance(x, SparseRows):
            return x.with_values(self.sparse(x).to(x.dtype))
        return self.dense(x, offsets).to(x.dtype)

    def learn(self, chunks: Chunks) -> None:
        """Set the buffers. A transform without buffers still reads all rows once, because the chunks refuse NaN."""
        chunks.check()

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The transform of dense rows (N, D)."""
        return self.change(x, slice(None))

    def sparse(self, x: SparseRows) -> Tensor:
        """The transform of the stored values (nnz,) of sparse rows."""
        return self.change(x.values, x.columns)

    def change(self, values: Tensor, columns: Tensor | slice) -> Tensor:
        """The transform of single values of these columns, if it works number by number and keeps 0."""
        raise NotImplementedError

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.fitted)

    def set_extra_state(self, state: Tensor) -> None:
        self.fitted = bool(state)

    def _check(self, x: Rows) -> None:
        if len(x.shape) != 2 or x.shape[1] != self.num_features:
            raise DataError(f"{type(self).__name__} takes rows of {self.num_features} features, got {tuple(x.shape)}")
        if isinstance(x, SparseRows) and self.sparse_refusal:
            raise DataError(f"{type(self).__name__} cannot take sparse rows: {self.sparse_refusal}")
