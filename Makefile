# Everything runs in .venv, installed from the locks with their hashes. A stamp file remembers which
# lock .venv was last installed from, so an unchanged lock costs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --require-hashes
# No local folder or second index takes part, so that the hashes are those that anybody gets.
COMPILE = env -u UV_FIND_LINKS -u UV_INDEX -u UV_EXTRA_INDEX_URL \
	$(BIN)/uv pip compile $(UPGRADE) --no-config --quiet --universal --fork-strategy fewest \
	--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" pyproject.toml

# A third more than there are processors, as tests wait for servers, databases and the disk.
WORKERS = $(shell $(PYTHON) -c "import os; print(max(3, os.cpu_count() * 4 // 3))")

# As in the Dockerfile.
REQUIREMENTS = requirements.lock
SBOM = sbom.json
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

# The tests start hundreds of processes: what one has compiled the next ones find.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help pictures serve schema test test-browser test-contract test-explore test-faults test-faults-short test-spark test-statistics test-image test-chart check fmt openapi bench lock sbom release-notes clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

serve: $(VENV)/serve.stamp ## run the service on an embedded database under ./data
	exec $(BIN)/python -m service serve

test: $(VENV)/dev.stamp ## run the whole test suite, on SQLite and on a real PostgreSQL
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

test-browser: $(VENV)/dev.stamp ## look at the web pages with Chromium (CHROMIUM names another than /usr/bin/chromium)
	$(BIN)/python -m pytest -m browser --numprocesses=auto --dist=loadfile tests/browser

pictures: $(VENV)/dev.stamp ## take the pictures of the main pages again, which `make test-browser` compares; look at what changes
	$(BIN)/python -m tests.browser.pictures

test-faults: $(VENV)/dev.stamp ## kill, cut off and fill up servers and databases under load, for a quarter of an hour
	$(BIN)/python -m pytest -m faults tests/faults --long

test-faults-short: $(VENV)/dev.stamp ## the same a few times each, in about two minutes
	$(BIN)/python -m pytest -m faults tests/faults

test-contract: $(VENV)/dev.stamp ## send generated requests to every operation as every role, for ten minutes
	$(BIN)/python -m pytest -m contract tests/test_contract.py

test-spark: $(VENV)/spark.stamp ## run the example's Spark job on a local Spark, which takes Java
	$(BIN)/python -m pytest tests/test_examples.py

test-explore: $(VENV)/dev.stamp ## run the property tests with fresh random examples for ten minutes (SEED=n: once, with this seed)
	$(BIN)/python -m tests.explore --workers $(WORKERS) $(if $(SEED),--seed $(SEED))

test-statistics: $(VENV)/dev.stamp ## ten million draws of each law, all values of the oracle and of earlier versions, all designs of the adversaries, and long forms of other tests
	$(BIN)/python -m pytest -m statistics tests/noise tests/oracles tests/compatibility tests/privacy/accounting tests/api/routes tests/ledger/accounts tests/ledger/verification

test-image: $(VENV)/dev.stamp ## follow the Dockerfile in a root of its own and run what it makes (as root, with debootstrap)
	$(BIN)/python -m pytest -m image tests/image

test-chart: $(VENV)/chart.stamp ## lint and render the Helm chart with Helm's own engine, and check the objects by the schemas of Kubernetes
	$(BIN)/python -m pytest -m chart tests/chart

check: $(VENV)/dev.stamp ## lint, types, import rules, the committed contract and reference, the Dockerfile
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=client/src $(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/test_repository.py
	$(BIN)/python -m service openapi | diff -u openapi.yaml -
	$(BIN)/python -m service settings | diff -u service/web/guide/configuration.md -
	$(BIN)/hadolint Dockerfile

fmt: $(VENV)/dev.stamp ## format the code and apply the linter's safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

openapi: $(VENV)/dev.stamp ## write openapi.yaml and the reference of the settings from the code
	$(BIN)/python -m service openapi > openapi.yaml.new
	mv openapi.yaml.new openapi.yaml
	$(BIN)/python -m service settings > service/web/guide/configuration.md.new
	mv service/web/guide/configuration.md.new service/web/guide/configuration.md

schema: $(VENV)/dev.stamp ## write the schema that `verify` expects, from fresh databases that are migrated
	$(BIN)/python -m tests.expected_schema

bench: $(VENV)/dev.stamp ## run the benchmarks, peers side by side
	$(BIN)/python -m benchmarks

lock: $(VENV)/dev.stamp ## lock what pyproject.toml asks for (UPGRADE=--upgrade: the newest in range)
	$(COMPILE) --output-file requirements.lock
	$(COMPILE) --extra otel --constraints requirements.lock --output-file requirements-otel.lock
	$(COMPILE) --extra dev --extra otel --constraints requirements-otel.lock --output-file requirements-dev.lock
	$(COMPILE) --extra spark --constraints requirements-dev.lock --output-file requirements-spark.lock
	$(COMPILE) --extra chart --constraints requirements-dev.lock --output-file requirements-chart.lock

sbom: $(VENV)/dev.stamp ## write what the image installs to sbom.json, a CycloneDX bill of materials (REQUIREMENTS=..., SBOM=...)
	PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements $(REQUIREMENTS) --pyproject pyproject.toml \
		--output-reproducible --output-file $(SBOM)

release-notes: ## print what CHANGELOG.md says of a version (VERSION=...; by default the present one)
	@awk -v heading='## [$(VERSION)]' '/^## \[/ { shown = index($$0, heading) == 1; found += shown } shown; \
		END { if (!found) { print "CHANGELOG.md has no version $(VERSION)" > "/dev/stderr"; exit 1 } }' CHANGELOG.md

clean: ## remove what was installed and cached; the ledger's data stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Python 3.11 or later with venv is needed; name another one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/serve.stamp: requirements.lock | $(BIN)/python
	$(PIP) --requirement requirements.lock
	touch $@

# The development lock holds the runtime's at the same versions, so it serves both.
$(VENV)/dev.stamp: requirements-dev.lock | $(BIN)/python
	$(PIP) --requirement requirements-dev.lock
	touch $@ $(VENV)/serve.stamp

$(VENV)/chart.stamp: requirements-chart.lock $(VENV)/dev.stamp
	$(PIP) --requirement requirements-chart.lock
	touch $@

$(VENV)/spark.stamp: requirements-spark.lock $(VENV)/dev.stamp
	$(PIP) --requirement requirements-spark.lock
	touch $@
