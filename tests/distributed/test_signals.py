"""A signal to one of two processes ends both: promptly, in one line each, with a checkpoint to resume from."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.running import ROOT, SMALL

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, 1)])
def test_a_signal_to_one_process_ends_both(tmp_path, sent, code):
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, "model=lambdarank", "trainer=ddp_cpu",
               "trainer.max_epochs=100000", "~callbacks.early_stopping", "hydra.run.dir=out"]  # fmt: skip
    last, environment = tmp_path / "out/checkpoints/last.ckpt", os.environ | {"OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        while not last.exists() and first.poll() is None:
            time.sleep(0.1)
        second = int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(first.pid)], text=True).split()[0])
        os.kill(second, sent)
        _, errors = first.communicate(timeout=30)
    finally:
        first.kill()
    assert first.returncode == code and "Traceback" not in errors, errors
    assert "Resume with" in errors and last.is_file()
