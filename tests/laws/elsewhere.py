"""A device that is not the host: what a function does there, with values, on a machine that has no other device."""

import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda")


class Elsewhere(TorchFunctionMode):
    """Every tensor says that it is on another device, and what is to be made there is made on the host: the branches
    for other devices run, and what they compute can be compared."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == torch.Tensor.device.__get__:  # not `is`: each look at it makes a new one
            return DEVICE
        return function(*map(_at_home, args), **{name: _at_home(part) for name, part in (kwargs or {}).items()})


def _at_home(part):
    return torch.device("cpu") if isinstance(part, torch.device) else part
