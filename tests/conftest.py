"""One thread for each process of the tests: as many run side by side as there are cores, or they would wait for each
other. And signals as a terminal leaves them, whatever started the tests."""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def signals():
    """The background of a script ignores SIGINT, as do processes started there, and so does Lightning for ever after
    one KeyboardInterrupt."""
    before = {each: signal.signal(each, usual) for each, usual in SIGNALS.items()}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


# they teach torch a device that is not there, after which no copy of the process can fit by gradients: test_device.py
# collects them in a process of its own
collect_ignore = [] if "TORCHRANK_DEVICE" in os.environ else ["laws/device.py", "laws/device_laws.py"]
