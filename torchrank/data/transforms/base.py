"""A feature transform: fitted on training rows in float64, applied to whole lists, kept in the ranker's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchrank.data.rows import Chunks, Rows
from torchrank.data.sparse import SparseRows


class Transform(nn.Module):
    """`transform.fit(x, offsets)` on training rows, then `transform(x, offsets)` anywhere; computes in float64.

    `offsets` only matters to a transform that is `per_query`. Sparse rows stay sparse, or are refused with
    `sparse_refusal`. The number of outputs of a transform that decides it by the data is 0 until it is fitted.

    >>> from torchrank.data.transforms import make_transform
    >>> x = torch.tensor([[1., 5.], [3., 5.]])
    >>> make_transform("standard", 2).fit(x)(x, torch.tensor([0, 2]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    learns = False  # one that learns nothing is ready from the start
    per_query = False
    sparse_refusal = ""

    def __init__(self, num_features: int):
        super().__init__()
        self.num_features, self.num_outputs = num_features, num_features
        self.fitted = not self.learns

    def fit(
        self, x: Rows, offsets: Tensor | None = None, *, device: torch.device | str = "cpu", seed: int = 0
    ) -> Transform:
        """Learn from all rows, in chunks on `device`; the same on every process. `offsets=None`: a shared corpus."""
        self._check(x)
        if len(x) == 0:
            raise ValueError("a transform cannot be fitted on 0 rows")
        home = next((buffer.device for buffer in self.buffers()), device)
        self.to(device).learn(Chunks(x, offsets, device, self.num_features), seed)
        self.fitted = True
        return self.to(home)

    def check_lists(self, *, shared: bool, vectors: bool) -> None:
        """Rows of a shared corpus and query vectors belong to no list: a transform `per_query` cannot change them."""
        if self.per_query and (shared or vectors):
            raise ValueError(
                f"{type(self).__name__} works inside each list, but these lists share rows or have a vector of their "
                "query: use another one, such as transform=standard"
            )

    def forward(self, x: Rows, offsets: Tensor) -> Rows:
        self._check(x)
        if not self.fitted:
            raise ValueError(f"{type(self).__name__} is used before it was fitted: call fit on the training rows first")
        if isinstance(x, SparseRows):
            return x.with_values(self.sparse(x).to(x.dtype))
        return self.dense(x, offsets).to(x.dtype)

    def learn(self, chunks: Chunks, seed: int) -> None:
        """Set the buffers; one that has none still reads all rows once, because the chunks refuse NaN."""
        for _ in chunks:
            pass

    def dense(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The transform of dense rows (N, D)."""
        return self.change(x, slice(None))

    def sparse(self, x: SparseRows) -> Tensor:
        """The transform of the stored values (nnz,) of sparse rows."""
        return self.change(x.values, x.columns)

    def change(self, values: Tensor, columns: Tensor | slice) -> Tensor:
        """The transform of single values, for one that works number by number and keeps 0."""
        raise NotImplementedError

    def resized(self) -> dict[str, list[int]]:
        """Shapes of the buffers that depend on the data, for `allocate` before `load_state_dict`."""
        return {}

    def allocate(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Give these buffers their shapes."""

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.fitted)

    def set_extra_state(self, state: Tensor) -> None:
        self.fitted = bool(state)

    def store(self, **buffers: Tensor) -> None:
        """Replace buffers, also by others of another shape."""
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def _check(self, x: Rows) -> None:
        if len(x.shape) != 2 or x.shape[1] != self.num_features:
            raise ValueError(f"{type(self).__name__} takes rows of {self.num_features} features, got {tuple(x.shape)}")
        if isinstance(x, SparseRows) and self.sparse_refusal:
            raise ValueError(f"{type(self).__name__} cannot take sparse rows: {self.sparse_refusal}")
