# Two commands are all a newcomer needs: `make up` runs HarchOS, `make test` proves it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
PROCESSES := tests/e2e tests/integration
PROSE := README.md CONTRIBUTING.md SECURITY.md docs changelog.d $(wildcard examples/*/*/README.md)
PIPELINES := $(wildcard tests/integration/test_nats_*.py tests/integration/test_pipeline_*.py \
               tests/integration/test_sense_*.py tests/integration/act)

.DEFAULT_GOAL := help
.PHONY: help up reset install test test-pipelines test-processes test-reasoning test-without-programs check mutants soak \
        docs pictures clean

help:            ## Lists what can be made
	@grep -hE '^[a-zA-Z0-9_%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

up: $(STAMP)     ## Sets up and starts the five-hub federation in the foreground (Ctrl-C stops all of it)
	@exec $(BIN)/harch up

reset:           ## Forgets all state of the federation
	@rm -rf $${HARCH_HOME:-.harch} && echo "state forgotten"

install: $(DEV)  ## Sets up .venv with everything tests and benchmarks need

# Real processes mostly wait, everything else computes: side by side the three parts take little longer than one.
# Kernels are compiled before, also those that were edited: dozens of processes that start together would each wait.
test: $(DEV)     ## Runs the whole test suite, its three parts side by side
	@$(BIN)/python -m harch.cli.compiling
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target test-pipelines test-processes test-reasoning

# Where HARCH_TEST_REPORTS names a folder, each part leaves there how it ended: .ci/run repeats what failed.
run_part = @HARCH_TEST_PART=$(1) $(BIN)/python -m pytest $(2); status=$$?; \
	[ -z "$$HARCH_TEST_REPORTS" ] || echo $$status >"$$HARCH_TEST_REPORTS/$(1).status"; exit $$status

test-pipelines: $(DEV)
	$(call run_part,pipelines,$(PIPELINES))

test-processes: $(DEV)
	$(call run_part,processes,$(PROCESSES) $(addprefix --ignore=,$(PIPELINES)))

test-reasoning: $(DEV)
	$(call run_part,reasoning,$(addprefix --ignore=,$(PROCESSES)))

test-without-programs: export HARCH_TEST_HIDE = programs
test-without-programs: $(DEV)
	$(call run_part,without-programs,-m 'needs or uses')

check: $(DEV)    ## Static checks and docs tests, under a minute
	@$(BIN)/ruff check src tests bench examples
	@$(BIN)/ruff format --check src tests bench examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tests/flaky.py
	@$(BIN)/codespell $(PROSE) src tests bench
	@$(BIN)/proselint check $(PROSE)
	@$(BIN)/python -m pytest tests/docs -m 'not needs'

mutants: $(DEV)  ## Which mutants of the deciding modules do tests kill? All, or SAMPLE=200, SEED=7, MODULES='placement/*'
	@$(BIN)/python tests/mutants/run.py $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(MODULES),--modules '$(MODULES)')

soak: $(DEV)     ## The whole suite with its long runs: hundreds of real kills, 20,000 stories, 200 mutants
	@HARCH_SOAK=1 $(BIN)/python -m pytest --timeout=0
	@$(BIN)/python tests/mutants/run.py --sample 200 $(if $(SEED),--seed $(SEED))

docs: $(DEV)     ## Builds the documentation into site/
	@$(BIN)/zensical build

pictures: $(DEV) ## Draws the diagrams and plots of the documentation into docs/pictures
	@$(BIN)/python tests/docs/pictures.py

bench-%: $(DEV)  ## Runs the benchmark bench/NAME.py; the last line is its JSON verdict
	@$(BIN)/python bench/$(subst -,_,$*).py

clean:           ## Removes the virtual environment and caches
	@rm -rf $(VENV) site dist .mypy_cache .ruff_cache .hypothesis .mutants

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'error: HarchOS needs Python 3.11 or newer'; echo 'hint: make up PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo 'error: this Python has no venv module'; \
	       echo "hint: apt-get install python3-venv   (Debian, Ubuntu), then run make again"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(BIN)/python
	@echo 'setting up .venv ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[environments,kernels,sentinel]'
	@$(BIN)/python -m harch.cli.compiling
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo 'setting up .venv with the development tools ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m harch.cli.compiling
	@touch $@ $(STAMP)
