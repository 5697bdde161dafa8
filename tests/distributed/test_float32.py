"""Fits by gradient in float32, as most are: 1 = 2 = 3 processes to a few times the rounding."""

import warnings

import pytest
import torch

from tests.distributed.fits import fit
from tests.distributed.group import start_group
from tests.laws.rankers import CASES, Case
from torchrank import LGMMLNet

pytestmark = pytest.mark.distributed
FITS = {
    "lambdarank": CASES["lambdarank"],
    "lgmml_net": CASES["lgmml_net"],
    "lgmml_net_linear_limit": Case(lambda: LGMMLNet(5, closed_form={"num_groups": 2, "alpha": 2.0}), 3),
}


def fit_all(rank, out):
    warnings.simplefilter("ignore")
    states = {name: fit(case, "32-true")["state"] for name, case in FITS.items()}
    if rank == 0:
        torch.save(states, out)
    torch.distributed.destroy_process_group()


def test_float32_fits_do_not_depend_on_the_number_of_processes(tmp_path):
    found = []
    for world in (1, 2, 3):
        for process in start_group(world, fit_all, tmp_path / f"{world}.pt"):
            process.join()
        found.append(torch.load(tmp_path / f"{world}.pt", weights_only=True))
    for name, key, value in ((name, *item) for name, state in found[0].items() for item in state.items()):
        for other in found[1:]:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert (other[name][key] - value).norm() <= 1e-5 * value.norm(), (name, key)
