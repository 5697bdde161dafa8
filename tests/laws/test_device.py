"""The laws of devices (`device_laws.py`), in a process of their own: torch cannot forget the emulated device, and a
copy of a process that knows it cannot fit by gradients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAWS = Path(__file__).with_name("device_laws.py")


@pytest.mark.slow
def test_the_laws_of_devices():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(LAWS)]
    environment = os.environ | {"TORCHRANK_DEVICE": "1"}
    done = subprocess.run(command, cwd=LAWS.parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
