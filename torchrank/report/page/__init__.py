"""The report of runs: `collect.py` makes a plain dict of them, `page.py` one self-contained page of that."""
