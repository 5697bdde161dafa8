import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
{before}
blocks = [torch.ones(2**18, dtype=torch.float64) for _ in range(8)]
del blocks
start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks = [torch.ones(2**18, dtype=torch.float64) for _ in range(8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
"""


def page_faults(before):
    code = FAULTS.format(before=before)
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators decide otherwise")
def test_freed_blocks_are_used_again():
    assert 4 * page_faults("import torchrank.functional") < page_faults("")
