# make run    set up .venv and run a first job, from the forecast to the outcome
# make test   set up .venv with the development extras; lint, types, import contracts, wheel, tests
#
# Variables: PYTHON (3.11 or newer), JOB (a built-in name or a file), PIP_FLAGS (for example an index of CPU-only wheels),
# PYTEST_FLAGS (for example -k cli).

VENV ?= .venv
JOB ?= digits-cnn
PIP_FLAGS ?=
PYTEST_FLAGS ?=
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
    if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$each; break; fi; done)

BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
DEV_STAMP := $(VENV)/.set-up-dev
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)

.PHONY: run test lint types contracts wheel pytest setup setup-dev clean
.DELETE_ON_ERROR:

run: setup
	@$(BIN)/tula run $(JOB)

test: lint types contracts wheel pytest

setup: $(STAMP)

setup-dev: $(DEV_STAMP)

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	    echo "error: Python 3.11 or newer is needed and none was found. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 2; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1), Tula needs Python 3.11 or newer. Name one: make PYTHON=/path/to/python3.11" >&2; \
	    exit 2; }
	@echo "Set-up: making $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV) || { \
	    rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv" >&2; \
	    exit 2; }

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Set-up: installing Tula and what it needs; torch is large, so the first time takes some minutes"
	@$(INSTALL) -e .
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Set-up: installing Tula with its development extras; torch is large, so the first time takes some minutes"
	@$(INSTALL) -e '.[dev]'
	@touch $(STAMP) $@

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy

contracts: setup-dev
	$(BIN)/lint-imports

# A wheel is built, installed alone into an empty environment that borrows only the third-party packages of .venv (a path
# in a .pth file does not bring the editable install along), and tried from a folder where there is no source.
wheel: setup-dev
	@rm -rf build/lib build/wheel build/wheel-venv && mkdir -p build
	$(BIN)/python -m build --wheel --outdir build/wheel . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	$(BIN)/python -m venv --without-pip build/wheel-venv
	$(BIN)/python -m pip --quiet --disable-pip-version-check --python build/wheel-venv/bin/python install --no-deps build/wheel/*.whl
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >build/borrowed.pth
	@mv build/borrowed.pth "$$(build/wheel-venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/"
	@TULA=$$PWD/build/wheel-venv && cd "$$(mktemp -d)" && \
	    $$TULA/bin/python -c 'import flows.cli, tula_core; assert "wheel-venv" in tula_core.__file__, tula_core.__file__' && \
	    $$TULA/bin/tula --help >/dev/null && $$TULA/bin/tula list >/dev/null && \
	    cp $(CURDIR)/deployments/examples/* . && \
	    TULA_HOME=$$PWD/home $$TULA/bin/tula plan job.yaml --set probe.seconds=8 --out plan.json >plan.txt 2>&1 || { cat plan.txt; exit 1; }
	@echo "The wheel works on its own, with a workload of one's own beside it."

pytest: setup-dev
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
