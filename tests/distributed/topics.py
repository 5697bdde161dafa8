"""Fits one model per topic in this process group, as `fits.py` does with its rankers.

usage: python -m torch.distributed.run --nproc-per-node 2 topics.py out.pt
"""

import sys
import warnings

import fits
import torch

from torchrank import PAMIR

fits.LENGTHS = {"train": [12, 40, 2, 9], "val": [6, 11, 3, 4], "test": [4, 7, 8, 5]}  # list q is topic q
FITS = {
    "steps": (lambda: PAMIR(5, per_topic=True, rounds=3), 3),
    "last": (lambda: PAMIR(5, per_topic=True, rounds=3, averaged=False, l2=1e-3), 3),
    "minibatches": (lambda: PAMIR(5, per_topic=True, rounds=3, minibatch=8), 3),
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    learned = {name: fits.fit(*how) for name, how in FITS.items()}
    if torch.distributed.get_rank() == 0:
        torch.save(learned, sys.argv[1])
    torch.distributed.destroy_process_group()
