"""`python -m torchrank.cli`: the same as the command `torchrank`."""

import sys

from torchrank.cli import main

if __name__ == "__main__":
    sys.exit(main())
