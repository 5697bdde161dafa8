"""One thread for each process of the tests: as many run side by side as there are cores, or they would wait for each
other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
