"""Named errors and warnings, so that callers can catch or filter them.

Every error is a `ValueError`, every warning a `UserWarning`.

Example:
    >>> import warnings, torchrank
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", torchrank.NumericalWarning)
    ...     # a fit here stops at the first numerical problem
"""

import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, cast


class DataError(ValueError):
    """The data cannot be used: a file, a row, a label, or lists that do not fit together.

    The message says what is wrong, where, and what to do.

    Example:
        >>> import torch, torchrank
        >>> try:
        ...     torchrank.RankingSet(torch.zeros(3, 1), torch.zeros(2), torch.tensor([0, 2]))
        ... except DataError:
        ...     print("refused")
        refused
    """


class CheckpointError(ValueError):
    """The file is not a checkpoint of torchrank, or it does not fit the ranker or its data.

    Example:
        >>> import torchrank
        >>> try:
        ...     torchrank.load(torchrank.__file__)
        ... except CheckpointError:
        ...     print("this is not a checkpoint")
        this is not a checkpoint
    """


class NotFittedError(ValueError, AttributeError):
    """A ranker, transform or estimator is used before it was fitted.

    Example:
        >>> import torch, torchrank
        >>> try:
        ...     torchrank.LambdaRank(2)(torch.zeros(3, 2), torch.tensor([0, 3]))
        ... except NotFittedError:
        ...     print("call fit first")
        call fit first
    """


class NotPositiveDefinite(ValueError):
    """A matrix that must be positive definite is singular or indefinite.

    Example:
        >>> import torch, torchrank
        >>> try:
        ...     torchrank.functional.geometric_mean(torch.zeros(2, 2), torch.eye(2))
        ... except NotPositiveDefinite:
        ...     print("add a ridge")
        add a ridge
    """


class DataWarning(UserWarning):
    """The data can be used, but something about it is probably not as the user expects.

    Example:
        >>> import warnings
        >>> warnings.filterwarnings("ignore", category=DataWarning)  # say nothing about unusual data
        >>> warnings.filterwarnings("error", category=DataWarning)  # or refuse it
    """


class NumericalWarning(UserWarning):
    """A computation lost digits, or succeeded only with a change such as a larger ridge.

    Example:
        >>> import warnings
        >>> warnings.filterwarnings("error", category=NumericalWarning)  # stop at the first numerical problem
    """


class ConvergenceWarning(UserWarning):
    """A fit ended before it reached its certificate.

    Example:
        >>> import warnings
        >>> warnings.filterwarnings("ignore", category=ConvergenceWarning)  # fits that end early are expected
    """


def check_choice(choices: Iterable[object], **options: object) -> None:
    """Refuse options that are none of the choices.

    Example:
        >>> check_choice(("stable", "average"), ties="first")
        Traceback (most recent call last):
        ValueError: unknown ties='first': choose one of stable, average
    """
    known = list(choices)
    for name, value in options.items():
        if value not in known:
            raise ValueError(f"unknown {name}={value!r}: choose one of {', '.join(map(str, known))}")


def check_number(wanted: str, **options: object) -> None:
    """Require finite numbers in the range `wanted`, such as "> 0 and <= 1", which messages show. None means not given.

    Example:
        >>> check_number("> 0 and <= 1", stabilise=0.3, eps=None)
        >>> check_number("> 0 and <= 1", stabilise=2)
        Traceback (most recent call last):
        ValueError: stabilise must be > 0 and <= 1, got 2
    """
    _check("a number", Real, wanted, options)


def check_integer(wanted: str, **options: object) -> None:
    """Require integers in the range `wanted`, such as ">= 1", which messages show. None means not given.

    Example:
        >>> check_integer(">= 1", rounds=2.5)
        Traceback (most recent call last):
        ValueError: rounds must be an integer >= 1, got 2.5
    """
    _check("an integer", Integral, wanted, options)


def check_mapping(**options: object) -> None:
    """Require mappings of names to values. None means not given.

    Example:
        >>> check_mapping(options={"max_depth": 3}, loss_options=None)
        >>> check_mapping(options="max_depth=3")
        Traceback (most recent call last):
        ValueError: options must be a mapping of names to values, got 'max_depth=3'
    """
    for name, value in options.items():
        if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
            raise ValueError(f"{name} must be a mapping of names to values, got {value!r:.100}")


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or class; an empty dictionary if Python cannot find them out.

    Example:
        >>> list(parameters_of(lambda scores, k=10: scores))
        ['scores', 'k']
    """
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function in C
        return {}


def check_options(owner: str, function: Callable[..., Any], options: dict[str, Any], given: tuple[str, ...]) -> None:
    """Refuse options that a function does not have; `given` names parameters that the caller fills in itself.

    Example:
        >>> check_options("the loss", lambda scores, k=10: scores, {"depth": 3}, ("scores",))
        Traceback (most recent call last):
        ValueError: the loss has no option depth; its options are: k
    """
    parameters = parameters_of(function)
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [name for name in parameters if name not in given]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"{owner} has no option {', '.join(unknown)}; its options are: {', '.join(known) or 'none'}")


def check_numbers(call: Callable[..., object], options: Mapping[str, object], prefix: str = "") -> None:
    """Refuse text for options that the signature of `call` declares as numbers; `prefix` stands before their names.

    Example:
        >>> def make(lr: float = 0.1, rounds: int | None = None, tau: str | float = "median"): ...
        >>> check_numbers(make, {"lr": 0.5, "tau": "max"})
        >>> check_numbers(make, {"rounds": "abc"}, "model.")
        Traceback (most recent call last):
        ValueError: model.rounds must be an integer, got 'abc'
    """
    for name, parameter in inspect.signature(call).parameters.items():
        kinds = set(re.findall(r"\w+", str(parameter.annotation)))
        if isinstance(options.get(name), str) and kinds & {"int", "float"} and not kinds & OTHERS:
            what = "a number" if "float" in kinds else "an integer"
            raise ValueError(f"{prefix}{name} must be {what}, got {options[name]!r}")


def _check(what: str, kind: type, wanted: str, options: dict[str, object]) -> None:
    bounds = [bound.split() for bound in wanted.split(" and ")]
    for name, value in options.items():
        used = value is not None
        if used and (not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(cast(float, value))):
            raise ValueError(f"{name} must be {what} {wanted}, got {value!r}")
        if used and not all(COMPARED[sign](value, float(limit)) for sign, limit in bounds):
            raise ValueError(f"{name} must be {wanted}, got {value!r}")


OTHERS = {"str", "Any", "dict", "list", "Sequence", "Tensor"}  # an option of these types is checked elsewhere
COMPARED: dict[str, Callable[[Any, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
