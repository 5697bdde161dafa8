"""Some of the kills of `make attack`."""

import pytest

from tests.attack import kills

SOME = ("mlp_listnet_pca", "rankboost", "mlr")
SETTINGS = [*(kills.Setting(name) for name in SOME), kills.Setting("adarank", "TERM")]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.case}-{setting.ended_by}")
def test_a_killed_fit_goes_on_as_if_nothing_had_happened(setting):
    tally = kills.attack(setting, seed=1, kills=3)
    print(tally.line())
    assert not tally.failures, "\n".join(tally.failures)


@pytest.mark.skipif(not kills.other_file_system(), reason="there is no second file system for temporary files")
def test_with_temporary_files_on_another_file_system():
    tally = kills.attack(kills.Setting("listnet_gradient", apart=True), seed=1, kills=3)
    assert not tally.failures, "\n".join(tally.failures)
