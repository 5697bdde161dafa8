"""The table of networks, and what may be said to them."""

from collections.abc import Callable
from typing import Any

from torch import nn

from torchrank.errors import check_integer, parameters_of
from torchrank.rankers.neural.attention import AttentionScorer
from torchrank.rankers.neural.dcn import DCNScorer
from torchrank.rankers.neural.gam import GAMScorer
from torchrank.rankers.neural.linear import LinearScorer
from torchrank.rankers.neural.local import LocalMetricScorer
from torchrank.rankers.neural.mlp import MLPScorer
from torchrank.rankers.neural.resnet import ResNetScorer

SCORERS: dict[str, type[nn.Module]] = {
    "linear": LinearScorer,
    "mlp": MLPScorer,
    "resnet": ResNetScorer,
    "dcn": DCNScorer,
    "gam": GAMScorer,
    "attention": AttentionScorer,
    "local": LocalMetricScorer,
}


def check_sizes(network: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse sizes of a network of the library that are not integers, or too small."""
    parameters = parameters_of(network)
    for name, value in options.items():
        kind = str(parameters[name].annotation)
        if "list" in kind and not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list of widths, got {value!r}")
        if "list" in kind:
            check_integer(">= 1", **{f"{name}[{place}]": width for place, width in enumerate(value)})
        elif "int" in kind:
            check_integer(">= 0" if name in ("blocks", "layers") else ">= 1", **{name: value})
