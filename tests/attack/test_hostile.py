"""The hostile files of `make attack`, with one way of hiding a call; and that the canary would tell."""

import pickle

import pytest

from tests.attack import pickles


@pytest.mark.parametrize("what", pickles.ALL)
def test_no_file_is_executed(what):
    tally = pickles.attack(what, "os.system")
    print(tally.line())
    assert tally.tries and not tally.failures, "\n".join(tally.failures)


@pytest.mark.parametrize("way", pickles.WAYS)
def test_a_reader_that_executes_files_would_be_found(way, tmp_path):
    pickle.loads(pickle.dumps(pickles.Bomb(tmp_path / "canary", way)))
    assert (tmp_path / "canary").exists()
