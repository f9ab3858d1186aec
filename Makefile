# The developer interface. `make help` lists the targets; everything else is found by the targets themselves.

SHELL := /bin/bash
.DEFAULT_GOAL := help
unexport PYTHONPATH PYTHONHOME
export PYTHON

BIN := .venv/bin
TYPES := build/types/pathways
# In order; those with a plus run side by side. With ARGS only the tests that they name run.
STEPS := $(if $(ARGS),quick,check-format lint types+wheel lit quick)
# Tests of hosts wait more than they compute, so there is one process more than there are cores. When one of them
# dies the run ends: with a new one in its place xdist may wait for ever.
ALL_AT_ONCE := -rfEs -n $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n + 1 : 8))) --dist loadfile \
  --no-loadscope-reorder --max-worker-restart 0
FUZZ := random_programs:5000 random_programs:3000:--hosts=2 mutate_ir:50000 mutate_bundles:5000 mutate_carriers:5000 mutate_files:400 random_schedules:2000 \
  mutate_requests:8000 mutate_connections:5000 random_clients:500 \
  random_branches:5000 random_carries:3000 random_while_loops:2000 random_while_loops:500:--hosts=2 \
  random_losses:5000 random_steps_ahead:300 random_steps_ahead:100:--hosts=4 random_steps_ahead:100:--hosts=0
BENCHES = $(filter-out bench/_%,$(sort $(wildcard bench/*.py)))

.PHONY: help demo test test-all nightly check-format lint types wheel extras lit quick rest pytest test-oldest behind-proxy conformance conformance-real proxy-versions durations coverage \
  fuzz lab stress bench docs site format lock venv type-links clean

help: ## list the targets
	@echo "make <target>; the first run makes .venv (PYTHON=/path/to/python chooses its Python)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

demo: venv ## train a small pipelined language model
	@$(BIN)/python examples/char_lm.py $(ARGS)

test: venv ## before each change, minutes: format, lint, types, wheel, lit, quick tests (ARGS="-k name" for some)
	@failed=; \
	for steps in $(STEPS); do \
	  echo "--- $$steps"; \
	  $(MAKE) --no-print-directory --keep-going -j $${steps//+/ } || failed="$$failed $$steps"; \
	done; \
	if [ -n "$$failed" ]; then echo "make test: failed:$$failed"; exit 1; fi; \
	echo "make test: all steps passed"

test-all: venv ## a quarter of an hour: make test, then all other tests, and the oldest jax
	@failed=; \
	for layer in test rest $(if $(ARGS),,test-oldest); do \
	  $(MAKE) --no-print-directory $$layer || failed="$$failed $$layer"; \
	done; \
	if [ -n "$$failed" ]; then echo "make test-all: failed:$$failed"; exit 1; fi; \
	echo "make test-all: all passed"

nightly: venv ## hours: make test-all, real programs, fuzz, bad networks, long runs, benchmarks (ARGS="-k name": tests alone)
	@failed=; \
	for layer in test-all lab $(if $(ARGS),,extras conformance-real proxy-versions $(if $(JAX_SOURCE),conformance) behind-proxy stress fuzz bench); do \
	  echo "--- $$layer"; \
	  $(MAKE) --no-print-directory $$layer || failed="$$failed $$layer"; \
	done; \
	if [ -n "$$failed" ]; then echo "make nightly: failed:$$failed"; exit 1; fi; \
	echo "make nightly: all passed"

check-format: venv ## is the code formatted?
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }

lint: venv ## ruff
	@$(BIN)/ruff check --quiet .

types: venv type-links ## mypy
	@set -o pipefail; $(BIN)/mypy --no-error-summary | sed 's,^$(TYPES)/,,; s,^__init__,compiler/_root/__init__,'

wheel: venv ## build the wheel in dist/, install it elsewhere, use it there
	@$(BIN)/python test/wheel/check.py

extras: venv ## the same with each extra, in an empty environment each
	@$(BIN)/python test/wheel/check.py --extras

lit: venv ## the .mlir tests (ARGS=test/passes/place/cse.mlir for one)
	@mkdir -p build/test
	@$(BIN)/lit -sv --no-progress-bar --timeout=120 --xunit-xml-output build/test/lit.xml $(or $(ARGS),test)

# Exit code 5: no test of this layer has a name that ARGS selects.
quick: venv ## the quick tests of make test
	@mkdir -p build/test
	@$(BIN)/pytest --layer=quick --junitxml=build/test/quick.xml $(ALL_AT_ONCE) $(ARGS) || [ $$? = 5 -a -n '$(ARGS)' ]

rest: venv ## the tests of make test-all that make test leaves out
	@mkdir -p build/test
	@$(BIN)/pytest --layer=rest --junitxml=build/test/rest.xml $(ALL_AT_ONCE) $(ARGS) || [ $$? = 5 -a -n '$(ARGS)' ]

pytest: venv ## any tests, in one process (ARGS="test/runtime -k name")
	@$(BIN)/pytest $(ARGS)

durations: venv ## measure the seconds of tests for test/durations.json, on a quiet machine (ARGS=test/x.py for some)
	@$(BIN)/pytest -p no:xdist --store-durations --durations-path=test/durations.json $(ARGS); \
	$(BIN)/python test/durations.py

# Some tests fail under it, which read what processes print or wait for: only lines count here.
coverage: venv ## the lines that make test and make test-all cover, by folder
	@mkdir -p build/test
	@for layer in quick rest; do \
	  COVERAGE_FILE=build/test/coverage.$$layer $(BIN)/pytest --layer=$$layer --cov --cov-report= -p coverage_contexts \
	    $(ALL_AT_ONCE) $(ARGS); \
	done; \
	COVERAGE_FILE=build/test/coverage.all $(BIN)/coverage combine --quiet --keep build/test/coverage.quick build/test/coverage.rest
	@$(BIN)/python test/coverage_table.py build/test/coverage.quick build/test/coverage.all

fuzz: venv ## random and mutated inputs for hours (SEED=1 for others)
	@failed=; \
	for run in $(FUZZ); do \
	  IFS=: read -r name count flags <<< "$$run"; \
	  echo "--- $$name $$flags"; \
	  $(BIN)/python test/fuzz/$$name.py --seed $(or $(SEED),0) --count $$count $$flags \
	    --keep build/fuzz/$$name$$flags || failed="$$failed $$name$$flags"; \
	done; \
	if [ -n "$$failed" ]; then echo "make fuzz: failed:$$failed; examples are in build/fuzz"; exit 1; fi

lab: venv ## hosts on slow, lossy and cut networks of namespaces, as root (ARGS="-k cut" for some)
	@mkdir -p build/test
	@$(BIN)/pytest --junitxml=build/test/lab.xml --timeout=600 -v test/lab/long_networks.py $(ARGS) \
	  || [ $$? = 5 -a -n '$(ARGS)' ]

stress: venv ## threads, killed and stopped hosts, killed training for an hour; random histories, and more examples of unit tests
	@$(BIN)/python test/support/stress_hosts.py $(or $(SEED),0) 600
	@$(BIN)/python bench/soak.py --seconds 1200
	@$(BIN)/python test/support/kill_training.py --kills 1000 --seed $(or $(SEED),0)
	@for how in own attached; do $(BIN)/python test/support/interrupt_steps.py 10000 $(or $(SEED),0) $$how || exit 1; done
	@$(BIN)/python test/runtime/control/histories.py --count 10000
	@$(BIN)/python test/runtime/service/sharing.py --count 10000
	@$(BIN)/python test/runtime/resilience/resilience_histories.py --count 10000
	@PW_TEST_EXAMPLES_FACTOR=20 $(BIN)/pytest --timeout=3600 $(ALL_AT_ONCE) test/dialect test/passes test/runtime

proxy-versions: venv ## small programs in clients of older releases of JAX on a server of pw-proxy
	@.ci/proxy-versions

behind-proxy: venv ## our tests of programs behind pw-proxy, in one process and on hosts (ARGS="--some -k name")
	@failed=; \
	for where in "" --on-hosts; do $(BIN)/python test/behind_proxy.py $$where $(ARGS) || failed=1; done; \
	[ -z "$$failed" ]

conformance: venv ## JAX's own tests through pw-proxy and locally (JAX_SOURCE=checkout; ARGS="--files array -k donat")
	@$(BIN)/python test/conformance.py "$(JAX_SOURCE)" $(ARGS)

bench: venv ## run the benchmarks (ARGS is handed to each)
	@for bench in $(BENCHES); do echo "--- $$bench"; $(BIN)/python $$bench $(ARGS) || exit 1; done

docs: venv ## write what is made of docstrings: pages of docs, a notebook, what pw-opt lists
	@$(BIN)/python docs/generate.py

site: venv type-links ## the manual as a site, in build/site/html
	@.ci/site

test-oldest: ## a small set of tests with the oldest jax and Python that are supported
	@.ci/test-oldest

conformance-real: venv ## MaxText, Tunix, numpyro, ... behind pw-proxy and with local JAX (ARGS="fsdp tunix" for some)
	@.ci/conformance-real $(ARGS)

format: venv ## format, and fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

lock: venv ## write requirements.txt anew from requirements.in, with hashes
	@.ci/lock

clean: ## remove build outputs and caches; .venv stays (rm -rf .venv)
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis test/.lit_test_times.txt
	@find . -name .venv -prune -o -type d \( -name __pycache__ -o -name Output \) -exec rm -rf {} +

venv:
	@.ci/setup-venv

# mypy cannot follow setuptools' editable mapping of folders to packages, so it gets a tree of links.
type-links:
	@[ ! -L $(TYPES) ] || rm $(TYPES)
	@mkdir -p $(TYPES)
	@for name in compiler dialect passes runtime tools; do ln -sfn ../../../$$name $(TYPES)/$$name; done
	@for name in __init__.py checkpoint.py extending.py py.typed; do ln -sfn ../../../compiler/_root/$$name $(TYPES)/$$name; done
