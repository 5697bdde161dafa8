"""Thresholds of all features at once, against a loop over the features."""

import pytest
import torch

from torchrank.solvers.boosting import binned_edges, encode, encode_rows


def of_a_column(values, bins):
    """Its distinct values in descending order, evenly thinned out to bins - 1."""
    distinct, most = sorted(set(values.tolist())), bins - 1
    if len(distinct) > most:
        distinct = [distinct[number * len(distinct) // most] for number in range(most)]
    return distinct[::-1]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bins", [2, 3, 7, 256])
def test_binned_edges_are_those_of_each_column(seed, bins):
    generator = torch.Generator().manual_seed(seed)
    rows, values = ((0, 9), (1, 9), (50, 1), (50, 9), (60, 30), (300, 280), (300, 3), (40, 40))[seed]
    sample = torch.randint(0, values, (rows, 4), generator=generator).double()
    sample[:, 0] = torch.randn(rows, generator=generator, dtype=torch.float64)
    columns = [of_a_column(column, bins) for column in sample.T]
    width = max(1, *map(len, columns))
    expected = [column + [-float("inf")] * (width - len(column)) for column in columns]
    assert binned_edges(sample, bins).tolist() == expected


@pytest.mark.parametrize("bins", [5, 256, 400])
def test_codes_of_blocks_are_those_of_all_rows(bins):
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(bins)).round(decimals=2)
    edges = binned_edges(x, bins)
    whole = encode(x.T, edges).codes
    assert torch.equal(encode_rows(x.split([1, 0, 300, 199]), 500, edges).codes, whole)
    assert torch.equal(whole, (x.T[:, :, None] <= edges[:, None, :]).sum(2).to(whole.dtype))
