"""What an engine of trees does for the ranker: one class for each package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.errors import check_choice
from torchrank.rankers.trees.forest import Forest


class Common(NamedTuple):
    """The options that the ranker has for all engines; None: the engine's own default."""

    objective: str
    lr: float
    leaves: int | None
    min_leaf: int | None
    threads: int
    seed: int


class Grown(NamedTuple):
    """A booster after a round, and whether it can grow no more."""

    booster: Any
    done: bool = False


class Engine(ABC):
    """A package that grows trees: its parameters, its data, its boosters, and their text.

    Args:
        common: options that the ranker has for all engines.
        options: further parameters by the engine's own names or aliases; they take precedence.
    """

    title: ClassVar[str]
    dtype: ClassVar[torch.dtype]  # in which it adds up scores
    objectives: ClassVar[Mapping[str, str]]  # its own names, by those of the ranker
    aliases: ClassVar[Mapping[str, tuple[str, ...]]]  # of what the ranker sets
    takes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, common: Common, options: Mapping[str, Any]):
        check_choice(self.objectives, objective=common.objective)
        self.parameters = {name: value for name, value in self._own(common).items() if value is not None}
        self.parameters |= self._by_main_names(options)
        self.parameters["objective"] = self.objectives[self.parameters["objective"]]
        self.threads = self.parameters[self._threads]

    def _by_main_names(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options by their main names, under which the ranker sets them too; beside them an alias would be ignored."""
        names = {alias: name for name, aliases in self.aliases.items() for alias in aliases}
        found: dict[str, Any] = {}
        given_as: dict[str, str] = {}
        for given, value in options.items():
            name = names.get(given, given)
            if (other := given_as.setdefault(name, given)) != given:
                raise ValueError(f"options have {name} twice, as {other} and {given}: give it once")
            self._check_option(name, given, value)
            found[name] = value
        if "objective" in found:
            check_choice(self.objectives, **{"options.objective": found["objective"]})
        return found

    _threads: ClassVar[str]  # its name of the number of threads

    @abstractmethod
    def _own(self, common: Common) -> dict[str, Any]:
        """The options of the ranker as parameters of the engine."""

    @abstractmethod
    def _check_option(self, name: str, given: str, value: Any) -> None:
        """Refuse a parameter that would change what the ranker decides."""

    @abstractmethod
    def check(self, batch: Batch) -> None:
        """Refuse lists with which the engine would end, or which it would misread."""

    @abstractmethod
    def data(self, batch: Batch, start: np.ndarray | None) -> Any:
        """The training data; `start` (N,) are the scores that the first tree adds to."""

    @abstractmethod
    def begin(self, booster: Any, data: Any) -> Grown:
        """The first tree on this data, after those of a booster (None: there are none)."""

    @abstractmethod
    def grow(self, booster: Any, data: Any) -> Grown:
        """One more round of a booster that `begin` has given."""

    @abstractmethod
    def resumes_exactly(self, batch: Batch, started: bool) -> bool:
        """Whether a booster that was read from its text grows as it would have grown."""

    @abstractmethod
    def rounds(self, booster: Any) -> int:
        """How many rounds a booster has grown."""

    @abstractmethod
    def predict(self, booster: Any, x: Tensor | SparseRows, start: np.ndarray | None) -> np.ndarray:
        """Scores (N,) of rows, on top of `start`."""

    @abstractmethod
    def added(self, booster: Any, x: Tensor | SparseRows, first: int, scores: np.ndarray) -> np.ndarray | None:
        """Scores (N,) after the rounds from `first` on are added; None where scores are no sum over the trees."""

    @abstractmethod
    def contributions(self, booster: Any, x: Tensor) -> np.ndarray:
        """The SHAP value (N, D) of each feature."""

    @abstractmethod
    def gains(self, booster: Any) -> np.ndarray:
        """The gain (D,) of all splits of each feature."""

    @abstractmethod
    def forest(self, booster: Any, started: bool) -> Forest:
        """All trees as arrays, whether or not they add to the scores of a ranker; those that are no sum of numerical
        decisions raise a ValueError."""

    @abstractmethod
    def text(self, booster: Any) -> str:
        """A booster as the text of the engine's own files."""

    @abstractmethod
    def read(self, text: str, num_features: int) -> Any:
        """The booster of a text, which is checked first: a text that is not one is a CheckpointError."""


def host(values: Tensor) -> np.ndarray:
    found: np.ndarray = values.detach().cpu().numpy()
    return found


def sizes(batch: Batch) -> np.ndarray:
    """The lengths of the lists that have documents."""
    lengths = host(batch.offsets.diff())
    return lengths[lengths > 0]
