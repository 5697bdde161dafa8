"""Parameters and buffers whose sizes are known when the data is: checkpoints record them."""

from collections.abc import Mapping

import torch
from pytorch_lightning import LightningModule
from torch import Tensor


class SizedState(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[str, list[int]] = {}

    def resize(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Give the parameter or buffer `name` this size, filled with 0."""
        tensor = self.state_dict(keep_vars=True)[name]
        tensor.data = tensor.new_zeros(shape)
        self._sizes[name] = list(shape)
        return tensor

    @torch.no_grad()
    def store(self, values: Mapping[str, Tensor]) -> None:
        """Write parameters and buffers, with the sizes of these values."""
        for name, value in values.items():
            value = value.detach()  # of its old size even where it is the parameter itself
            self.resize(name, tuple(value.shape)).copy_(value)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["sizes"] = self._sizes

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        for name, shape in checkpoint["sizes"].items():
            self.resize(name, tuple(shape))
