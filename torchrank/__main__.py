"""`python -m torchrank`: the same as the command `torchrank`, where its folder is not on the path."""

import sys

from torchrank.cli import main

if __name__ == "__main__":
    sys.exit(main())
