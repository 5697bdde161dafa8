"""Every module can be imported where Unix's own modules are missing, and imports leave the process as it was."""

import json
import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, json, os, pkgutil, sys, warnings

for name in ("fcntl", "resource"):
    sys.modules[name] = None  # importing it fails from now on
del os.sysconf
import numpy, torch, pytorch_lightning, torchmetrics, polars, scipy, tqdm, filelock  # whose filters are not ours

before = list(warnings.filters)
installed = []
for name in ("filterwarnings", "simplefilter", "resetwarnings"):
    original = getattr(warnings, name)

    def recorded(*arguments, original=original, name=name, **options):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("torchrank"):
            installed.append([caller, name])
        return original(*arguments, **options)

    setattr(warnings, name, recorded)

import torchrank

names = ["torchrank", *(each.name for each in pkgutil.walk_packages(torchrank.__path__, "torchrank."))]
for name in names:
    importlib.import_module(name)
added = [repr(each) for each in warnings.filters if each not in before]
print(json.dumps({"names": names, "installed": installed, "added": added}))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def imported() -> dict:
    """What a fresh interpreter finds when it imports all modules of torchrank without what only Unix has."""
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_all_modules_are_imported_without_what_only_unix_has(imported):
    some = {"torchrank.files", "torchrank.train", "torchrank.data.letor.store", "torchrank.rankers.core.ranker"}
    assert some <= set(imported["names"]) and len(imported["names"]) > 100


def test_imports_install_no_filter_of_warnings(imported):
    assert imported["installed"] == [] and imported["added"] == []
