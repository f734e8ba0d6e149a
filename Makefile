# Two commands on a fresh machine: `make demo` and `make test`. They need Python 3.11 (or newer) and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint format tables pages docs clean

help:            ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12
	@echo "one paper:  $(BIN)/papers run quip_sharp +exp=ci    (or: $(BIN)/python -m papers.quip_sharp.train +exp=ci)"

$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (a few minutes the first time)"
	$(INSTALL) -e .
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing with the development extras (a few minutes the first time)"
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/core

$(VENV)/docs: $(VENV)/dev
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(VENV)/core   ## quantise the small model to 2 bits with QuIP# and three baselines, and print the table
	$(BIN)/python -m papers.quip_sharp.train

test: $(VENV)/dev    ## the tests (PAPER=name: of one paper and what is common; SLOW=1: the slow ones too)
	PAPERS_TESTED="$(PAPER)" $(BIN)/python -m pytest $(if $(SLOW),-m "slow or not slow")

lint: $(VENV)/dev    ## format, lint and type checks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/dev  ## put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: $(VENV)/dev  ## run and record every paper's claims (SLOW=1: the slow experiments too; ALL=1: what was declared unchanged too)
	$(BIN)/python -m scripts.tables $(if $(SLOW),--slow) $(if $(ALL),--all) $(PAPER)

pages: $(VENV)/core  ## write the pages that speak of several papers, from the papers' folders
	$(BIN)/python -m scripts.pages

docs: $(VENV)/docs   ## build the site into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:           ## remove what builds and tests leave behind (runs stay: see `papers clean`)
	rm -rf docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
