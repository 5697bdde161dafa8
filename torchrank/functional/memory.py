"""Memory of the host that is used again instead of being asked from the system anew."""

import torch

LARGEST = 2**25 - 2**13  # bytes: glibc keeps no freed block above 32 MB


def keep_freed_blocks() -> None:
    """Have freed blocks of up to 32 MB used again, as in any program that has once freed a tensor of that size.

    At first glibc returns such blocks to the system at once, and it takes longer to get new ones, page by page, than to
    fill them. It keeps blocks up to the size of the largest one that was freed so far (mallopt(3), M_MMAP_THRESHOLD).
    The block that is freed here is never written, so that it takes no memory; other allocators do not mind it.

    >>> keep_freed_blocks()
    """
    torch.empty(LARGEST, dtype=torch.uint8)
