"""Some of the full disks, file size limits and concurrent runs of `make attack`."""

import pytest

from tests.attack import disk


@pytest.mark.slow
@pytest.mark.parametrize("what", [name for name in disk.ATTACKS if "cache" not in name])
def test_what_was_there_stays_whole(what):
    tally = disk.attack(what, seed=3, tries=1)
    print(tally.line())
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert not tally.failures, "\n".join(tally.failures)
