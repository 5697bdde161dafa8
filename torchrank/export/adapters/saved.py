"""The maps of an adapter, and what they make of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from torchrank.errors import DataError, check_choice

SIDES = ("query", "document")
SIMILARITY_NAMES = {"inner": "dot", "cosine": "cosine", "euclidean": "euclidean"}  # of sentence-transformers
NORMALISED = (None, "vectors", "images")
SHORTEST = 1e-12  # the length that an image is divided by at least, as in torch.nn.functional.normalize
Vectors = TypeVar("Vectors", Tensor, np.ndarray)


@dataclass(frozen=True, eq=False)
class SavedAdapter:
    """Linear maps of query vectors, of document vectors, or of both.

    Args:
        query: the matrix (D, R) of the queries, whose image is `vector @ matrix`; None if they stay as they are.
        document: the same for the documents. If only one side has a map, R is D.
        normalise: what is divided by its length: "images"; if both sides are mapped also "vectors", before that; or
            None for nothing.
        similarity: what ranks the images: inner, cosine or euclidean.

    Example:
        >>> adapter = SavedAdapter(torch.tensor([[0.0, 2.0], [1.0, 0.0]]), None, normalise=None, similarity="inner")
        >>> adapter.apply(np.array([[1.0, 3.0]]), "query")
        array([[3., 2.]])
        >>> adapter.apply(np.array([[1.0, 3.0]]), "document")
        array([[1., 3.]])
    """

    query: Tensor | None
    document: Tensor | None
    normalise: str | None
    similarity: str

    def __post_init__(self) -> None:
        check_choice(SIMILARITY_NAMES, similarity=self.similarity)
        check_choice(NORMALISED, normalise=self.normalise)
        shapes = {name: tuple(matrix.shape) for name, matrix in self.maps.items()}
        if not shapes:
            raise ValueError("an adapter needs a matrix for the queries, for the documents, or for both")
        for name, matrix in self.maps.items():
            if matrix.ndim != 2 or 0 in matrix.shape or not matrix.is_floating_point():
                raise ValueError(f"{name} must be a matrix of floats, got {matrix.dtype} {shapes[name]}")
            if not matrix.isfinite().all():
                row, column = (~matrix.isfinite()).nonzero()[0].tolist()
                raise ValueError(f"{name} must be finite, found {float(matrix[row, column])} in [{row}, {column}]")
        if len(set(shapes.values())) > 1:
            raise ValueError(f"the two matrices must have one shape, got {shapes['query']} and {shapes['document']}")
        if len(shapes) == 2:
            return
        (name,), (other,) = shapes, set(SIDES) - set(shapes)
        if self.normalise == "vectors":
            raise ValueError(f"normalise='vectors' needs two maps: {other} vectors stay as they are. Set 'images'")
        if self.inputs != self.outputs:
            raise ValueError(
                f"{name} must be square, since {other} vectors stay as they are, got {shapes[name]}: map both sides"
            )

    @property
    def maps(self) -> dict[str, Tensor]:
        """The matrices by side, those that there are."""
        found = {"query": self.query, "document": self.document}
        return {name: matrix for name, matrix in found.items() if matrix is not None}

    @property
    def side(self) -> str:
        """query, document or both."""
        return "both" if len(self.maps) == 2 else next(iter(self.maps))

    @property
    def inputs(self) -> int:
        """D, the numbers of a vector."""
        return int(next(iter(self.maps.values())).shape[0])

    @property
    def outputs(self) -> int:
        """R, the numbers of an image."""
        return int(next(iter(self.maps.values())).shape[1])

    def apply(self, vectors: Vectors, side: str) -> Vectors:
        """The images of vectors (..., D); a side without a map gets its vectors back.

        Args:
            vectors: a tensor or an array of floats.
            side: query or document.

        Returns:
            Images (..., R) of the same kind and dtype. Sums of half precision are taken in float32.
        """
        check_choice(SIDES, side=side)
        rows = torch.from_numpy(vectors) if isinstance(vectors, np.ndarray) else vectors
        if not rows.is_floating_point() or rows.ndim == 0 or rows.shape[-1] != self.inputs:
            found = f"{rows.dtype} {tuple(rows.shape)}"
            raise DataError(f"expected vectors of {self.inputs} floats for this adapter, got {found}")
        if side not in self.maps:
            return vectors
        images: Tensor = self._images(rows, self.maps[side]).to(rows.dtype)
        return images.numpy() if isinstance(vectors, np.ndarray) else images

    def _images(self, rows: Tensor, matrix: Tensor) -> Tensor:
        dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        images = _divided(rows.to(dtype)) if self.normalise == "vectors" else rows.to(dtype)
        images = images @ matrix.to(rows.device, dtype)
        return _divided(images) if self.normalise == "images" else images


def _divided(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1, eps=SHORTEST)
