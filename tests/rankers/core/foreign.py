"""Modules that are not rankers of torchrank: what a user writes to train on `RankingDataModule`."""

import torch
from pytorch_lightning import LightningModule

from torchrank import mean_over_lists
from torchrank.functional import listnet_loss


class Mine(LightningModule):
    def __init__(self, num_features):
        super().__init__()
        layers = torch.nn.Linear(num_features, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1, bias=False)
        self.net = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x.to(self.net[0].weight.dtype)).squeeze(-1)

    def training_step(self, batch, batch_index):
        return mean_over_lists(listnet_loss(self(batch.x), batch.labels, batch.offsets))

    def validation_step(self, batch, batch_index):
        return self(batch.x)

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)
