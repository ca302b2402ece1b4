# Two commands from a fresh checkout: make demo, make test. Each installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types docs results check clean

# All methods on embedded data, the claims that apply to it, and the page that shows it.
demo: .venv/installed
	$(BIN)/adareg reproduce digits digits-completion --scale small --out runs/demo
	$(BIN)/adareg claims runs/demo
	$(BIN)/adareg report runs/demo --out runs/demo/report.html

# One thread in each process: there is a process for every core.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

# The variable silences an advertisement of the theme's authors.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What README and results/ show of the committed records.
results: .venv/installed
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/results.py

check: test lint types docs

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
