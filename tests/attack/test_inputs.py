"""Some of the damaged files of `make attack`."""

import pytest

from tests.attack import inputs

SLOW = ("cache beside its source",)  # which writes a cache for each try


@pytest.mark.parametrize("name", inputs.KINDS)
def test_damaged_files_are_read_rightly_or_refused(name):
    tally = inputs.attack_here(name, seed=1, count=10 if name in SLOW else 30)
    print(tally.line())
    assert not tally.failures, "\n".join(tally.failures)
