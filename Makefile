# make demo | test | checked | lint | bench. Each makes its own virtual environment when there is none.
#   PYTHON=python3.12   the interpreter that makes the environment
#   VENV=folder         where the environment is
#   ARGS='...'          more arguments for the command that runs

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

BIN    := $(VENV)/bin
# Newer than pyproject.toml means: the environment has what the project asks for.
STAMP  := $(VENV)/.installed

.PHONY: help demo test checked lint bench

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

$(STAMP): pyproject.toml
	@echo "installing tessera and its tools into $(VENV) (the first time takes a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,demo]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/digits.py $(ARGS)

# Two workers: compilation is the cost, and the smallest machine we test on has two cores.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 $(ARGS)

# What runs compiled code for CPUs; rules of ops run none.
CHECKED := $(addprefix tests/,api differential graph nn test_fft.py test_linalg.py)
CHECKED += tests/target/test_conditions.py
CHECKED += $(addprefix tests/schedule/,test_fusion.py test_keeping.py test_streaming.py)
CHECKED += --ignore-glob='*/graph/test_ops_*.py'

# With a check of each access to memory, and what was not written poisoned: docs/debugging.md. Not those
# that interpreters checked: tests/halves.py.
checked: $(STAMP)
	TESSERA_DEBUG_BOUNDS=1 $(BIN)/python -m pytest -q -n 2 $(CHECKED) $(ARGS)

# Both always run, so that one run reports everything. No format check: tables are aligned by hand.
lint: $(STAMP)
	@status=0; \
	$(BIN)/python -m ruff check --output-format concise . || status=1; \
	$(BIN)/python -m pyright --pythonpath $(BIN)/python || status=1; \
	exit $$status

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py $(ARGS)
