"""What both estimators share: models by name, parameters, and files."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

import torchrank
from torchrank.errors import CheckpointError, NotFittedError
from torchrank.rankers.core.checkpoint_content import named
from torchrank.rankers.core.checkpoints import check_plain, load, read_checkpoint, save
from torchrank.rankers.core.own import only_given, plain_names

if TYPE_CHECKING:
    from torchrank.rankers.core.ranker import Ranker

try:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.utils.validation import check_is_fitted, validate_data

    HAS_SKLEARN = True
except ImportError:  # rankers work without it
    HAS_SKLEARN = False

    class BaseEstimator:  # type: ignore[no-redef]
        """What is needed of the class in scikit-learn where that is not installed."""

        def __repr__(self) -> str:
            return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.get_params().items())})"  # type: ignore[attr-defined]


LOCALIZED = {
    "groups": "random", "metrics": 32, "queries_per_metric": 1, "t": 0.5, "ridge": 0.1, "kappa": 10.0,
    "transform": "standard", "anchor": "best", "kernel": "localized", "tau": 1.0, "rounds": 1,
}  # fmt: skip
Model = tuple[str, Mapping[str, Any]]  # the class of a ranker, and options that differ from its defaults


class RankerParameters(BaseEstimator):  # type: ignore[misc]
    """An estimator whose parameters are its own and the options of the ranker that its parameter `model` names."""

    MODELS: ClassVar[dict[str, Model]]
    model: str
    ranker_: Ranker
    _options: Mapping[str, Any] = MappingProxyType({})  # of the ranker, as they were given

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, those of the ranker among them.

        Args:
            deep: without meaning here; scikit-learn gives it.

        Returns:
            The values by name.
        """
        return {name: getattr(self, name) for name in own_parameters(type(self))} | dict(self._options)

    def set_params(self, **params: Any) -> Self:
        """Change parameters; one that the model does not have is refused.

        Args:
            params: the new values by name.

        Returns:
            The estimator itself.
        """
        self._check_names(params.get("model", self.model), params)
        values, own = self.get_params() | params, own_parameters(type(self))
        for name in own:
            setattr(self, name, values.pop(name))
        self._options = values
        return self

    def _check_names(self, model: str, names: Iterable[str]) -> None:
        if isinstance(model, str) and model in self.MODELS:
            own = set(own_parameters(type(self)))
            known = own | set(inspect.signature(self._ranker_class(model)).parameters) - {"num_features"}
            if unknown := [name for name in names if name not in known]:
                known_names = ", ".join(sorted(known))
                raise ValueError(f"{model} has no parameter {', '.join(unknown)}: choose from {known_names}")

    def _ranker_class(self, model: str) -> type[Ranker]:
        kind: type[Ranker] = torchrank.find_export(self.MODELS[model][0])
        return kind

    def _new_ranker(self, num_features: int, **defaults: Any) -> Ranker:
        """A ranker that is not fitted. Options that were given come before `defaults`, and these before presets."""
        if not isinstance(self.model, str) or self.model not in self.MODELS:
            raise ValueError(f"unknown model={self.model!r}: choose one of {', '.join(self.MODELS)}")
        self._check_names(self.model, self._options)
        kind, plain = self._ranker_class(self.model), {name: _plain(value) for name, value in self._options.items()}
        known = inspect.signature(kind).parameters
        wanted = {**self.MODELS[self.model][1], **{n: v for n, v in defaults.items() if n in known}, **plain}
        return kind(num_features=num_features, **wanted)

    def _check_fitted(self) -> None:
        if HAS_SKLEARN:
            check_is_fitted(self, "ranker_")
        elif not hasattr(self, "ranker_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")

    # ---- files --------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to a checkpoint, which `torchrank.load` reads too: it gives the ranker.

        Args:
            path: the file, which is replaced as a whole if it exists.
        """
        self._check_fitted()
        params = plain_names({name: _plain(value) for name, value in self.get_params().items()})
        check_plain(params, "parameters")
        own = {"name": type(self).__name__, "params": params, "learned": self._learned()}
        save(self.ranker_, path, estimator=own)

    @classmethod
    def load(cls, path: str | PathLike[str], *, scorer: Any = None, loss: Any = None) -> Self:
        """Read a fitted estimator from a file that `save` has written. Nothing in the file is executed or imported.

        Args:
            path: the file.
            scorer: the network of your own that the ranker was fitted with, if any.
            loss: the loss of your own that it was fitted with, if any.

        Returns:
            The fitted estimator.
        """
        content = read_checkpoint(path).get("estimator")
        if not isinstance(content, dict) or content.get("name") != cls.__name__:
            raise CheckpointError(f"{path} holds no {cls.__name__}: load its ranker with torchrank.load(path)")
        with named(path):
            found = cls(**only_given(content["params"], {"scorer": scorer, "loss": loss}))
            found.ranker_ = load(path, scorer=scorer, loss=loss)
            found._restore(content["learned"])
        return found

    def _learned(self) -> dict[str, Any]:
        """What was learned beside the ranker: plain values and tensors."""
        names = getattr(self, "feature_names_in_", None)
        return {"features": self.n_features_in_, "names": None if names is None else [str(name) for name in names]}

    def _restore(self, learned: dict[str, Any]) -> None:
        self.n_features_in_ = int(learned["features"])
        if learned["names"] is not None:
            self.feature_names_in_ = np.array(learned["names"], dtype=object)


def own_parameters(kind: type) -> list[str]:
    """The parameters of an estimator without those of its ranker.

    >>> from torchrank import RankingEstimator
    >>> own_parameters(RankingEstimator)
    ['model', 'epochs', 'batch_documents', 'seed']
    """
    parameters = inspect.signature(kind).parameters.values()
    return [each.name for each in parameters if each.kind != each.VAR_KEYWORD]


def validated(estimator: Any, X: Any, y: Any = None, *, reset: bool, **options: Any) -> Any:
    """X, or X and y, as arrays that scikit-learn has checked; it writes the features of a fit to the estimator."""
    if y is None:
        return validate_data(estimator, X, reset=reset, **options)
    return validate_data(estimator, X, y, reset=reset, **options)


def _plain(value: Any) -> Any:
    """Numbers of numpy, which searches draw from arrays, as those of Python."""
    return value.item() if isinstance(value, np.generic) else value
