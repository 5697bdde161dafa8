# make train [ARGS="model=listnet data=mq2008 data.root=..."], without ARGS a first comparison   make quick|test [ARGS="-k measures"]   make lint|format
PYTHON ?= python3
BIN := .venv/bin

train: .venv/installed
	$(BIN)/python train.py $(or $(ARGS),-m experiment=first)

QUICK := torchrank tests/functional tests/rankers/core
quick: .venv/installed  # under a minute: all doctests, the functions and the machinery of rankers; or ARGS=tests/FOLDER
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not distributed and not peers" $(or $(ARGS),$(QUICK))

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy torchrank

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv

.PHONY: train quick test lint format clean
