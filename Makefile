# make train [ARGS="model=listnet data=mq2008 data.root=..."], without ARGS a first comparison   make quick|test [ARGS="-k measures"]   make lint|format
# make docs: the documentation, strict, into site/   make browser: the report in headless Chromium   make wheel: build it and try it in an empty environment
# make attack [ARGS="--write docs/reliability.md"]: the standing attack   make notebooks: execute the notebooks with quick settings
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

train: .venv/installed
	$(BIN)/python train.py $(or $(ARGS),-m experiment=first)

QUICK := torchrank tests/functional tests/rankers/core
quick: .venv/installed  # under a minute: all doctests, the functions and the machinery of rankers; or ARGS=tests/FOLDER
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not distributed and not peers" $(or $(ARGS),$(QUICK))

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

attack: .venv/installed  # about 20 minutes: kills, damaged and hostile files, full disks; ends with a table
	$(BIN)/python -m tests.attack --json attack.json $(ARGS)

weekly: .venv/installed  # what `make test` leaves out for its time
	$(BIN)/python -m pytest -n 2 --dist worksteal -m weekly $(ARGS)

bench: .venv/installed  # all benchmarks, or ARGS="--quick losses"; ARGS="--beside PATH" measures another checkout, too
	$(BIN)/python -m benchmarks $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy torchrank

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[dev]"
	touch $@

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel:
	PYTHON="$(PYTHON)" CONSTRAINTS="$(CONSTRAINTS)" .ci/wheel

browser: .venv/browser  # opens the report in headless Chromium, clicks through it, takes screenshots
	$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

.venv/browser: .venv/installed
	$(INSTALL) --editable ".[browser]"
	touch $@

notebooks: .venv/notebooks  # the five stories with quick settings, then the notebooks of the papers without their sweeps
	for story in notebooks/[1-5]_*.ipynb; do \
		TORCHRANK_QUICK=1 PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH="$(CURDIR)" $(BIN)/python -m nbconvert --to notebook \
			--execute --output-dir .venv/executed $$story || exit 1; \
	done
	TORCHRANK_NOTEBOOKS=1 $(BIN)/python -m pytest tests/notebooks/test_notebooks.py $(ARGS)

.venv/notebooks: .venv/installed
	$(INSTALL) --editable ".[notebooks]"
	touch $@

.venv/docs: .venv/installed
	$(INSTALL) --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv site dist

.PHONY: weekly bench train quick test attack lint format docs browser notebooks wheel clean
