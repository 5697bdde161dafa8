"""The rankers of the law table after their fits, once in a process, for tests that only look at them."""

import warnings
from functools import cache

import torch

from tests.laws.rankers import CASES, sets
from torchrank import Ranker

kinds = cache(sets)


@cache
def fitted(name: str) -> Ranker:
    torch.manual_seed(0)
    case, own = CASES[name], kinds(CASES[name].kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.make().fit(own["train"], own["val"], epochs=case.epochs, batch_documents=20)
