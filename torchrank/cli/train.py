"""`torchrank train`: train.py, for those who installed the package."""

import sys

EXAMPLES = """
torchrank train model=lambdarank data=files data.train=train.txt data.test=test.txt
torchrank train -m model=listnet,lambdarank data=mq2008 data.root=FOLDER
"""


def run(overrides: list[str]) -> int:
    """Hydra reads the overrides from `sys.argv`, with which Lightning also starts further processes."""
    from torchrank.train import __file__ as script
    from torchrank.train import main as train

    sys.argv = [script, *overrides]
    train()
    return 0
