"""Some of the damaged files of `make attack`."""

import pytest

from tests.attack import inputs


@pytest.mark.parametrize("name", inputs.KINDS)
def test_damaged_files_are_read_rightly_or_refused(name):
    tally = inputs.attack_here(name, seed=1, count=100)
    print(tally.line())
    assert not tally.failures, "\n".join(tally.failures)
