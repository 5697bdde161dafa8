"""python train.py model=listnet data=mq2008 data.root=...: see `torchrank/train.py` and `conf/`."""

from torchrank.train import main

if __name__ == "__main__":
    main()
