# make train [ARGS="model=listnet data=mq2008 data.root=..."]   make test [ARGS="-k metrics"]   make lint
PYTHON ?= python3
BIN := .venv/bin

train: .venv/installed
	$(BIN)/python train.py $(ARGS)

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy torchrank

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv

.PHONY: train test lint clean
