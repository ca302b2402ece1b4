# Two commands from a fresh checkout: make demo, make test. Each installs what it needs into .venv.
# make test-all is everything: make test, and make test-rest, which is all that make test leaves out.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-rest test-all test-numbers test-oldest lint types docs results check clean

# On data that come with scikit-learn, in about a minute on two cores: the estimators beside others on
# tables, the paper's methods on digits with the claims that apply, and the page that shows both.
demo: .venv/installed
	$(BIN)/adareg reproduce tables --scale small --out runs/demo
	$(BIN)/adareg reproduce digits digits-completion --scale small --seeds 5 --out runs/demo
	$(BIN)/adareg claims runs/demo
	$(BIN)/adareg report runs/demo --out runs/demo/report.html

# One thread in each process: there is a process for every core.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile
test: .venv/installed
	$(TEST) -m "not exhaustive"

# Real clusters, kills, browsers, large weights; and many cases of each property instead of a few.
test-rest: .venv/installed
	$(TEST) -m "exhaustive or hypothesis" --hypothesis-profile exhaustive

test-all: test test-rest

# What depends on numbers, as an old CPU makes them: torch without AVX, OpenBLAS with its oldest kernels.
OLD_CPU := ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Prescott
test-numbers: .venv/installed
	$(OLD_CPU) $(TEST) -m "not exhaustive" src/adareg tests/core tests/nn tests/lab/judge \
		tests/lab/report tests/lab/train tests/test_results.py tests/test_sklearn*.py

# The integrations and the lab with the oldest versions that are declared, in an environment of its
# own. Torch is the usual one. Old packages warn of what newer ones have deprecated since.
OLDEST := .venv-oldest/bin
test-oldest: .venv-oldest/installed
	OMP_NUM_THREADS=1 $(OLDEST)/python -m pytest -n auto --dist loadfile -m "not exhaustive" \
		-W ignore::DeprecationWarning -W ignore::FutureWarning tests/lab/data tests/lab/judge \
		tests/lab/report/test_report.py tests/test_optional.py tests/test_package.py \
		$(wildcard tests/test_sklearn*.py tests/test_evidence*.py) \
		$(wildcard tests/test_lightning*.py tests/test_transformers*.py)

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

check: test-all test-numbers test-oldest lint types docs

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv-oldest/installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints-oldest.txt --editable ".[lab,lightning,sklearn,transformers]" \
		hypothesis numpy psutil pytest pytest-xdist tensorboard
	@touch $@

clean:
	rm -rf .venv .venv-oldest site .mypy_cache .ruff_cache .pytest_cache .hypothesis
