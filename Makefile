# SPDX-License-Identifier: Apache-2.0
# Needs make and Python 3.11 or newer; everything else is installed into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TEST_EXTRAS := test,atari,box2d,classic,dashboard,docs,export,minatar,mujoco,pettingzoo,plots,ray,remote,sweep,tensorboard,trackers,video
SOURCES := pyproject.toml constraints.txt
PEERS := sb3 sample_factory rllib
# What others build on, and the architectures: typed strictly. tests/test_layout.py checks the same.
PUBLIC_FACE := $(addprefix veldt/,extend.py architectures ports.py topology.py types.py role.py \
  problem.py api.py options errors.py context.py)

.PHONY: demo test test-slow lint docs release-check bench bench-peers bench-scores claims mutants zoo

demo: $(VENV)/.installed-core
	$(BIN)/veldt train impala --env CartPole-v1 --target-return 475

PYTEST = $(BIN)/python -m pytest tests --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# What to run before a commit: a few minutes.
test: $(VENV)/.installed-test
	$(PYTEST) -m "not slow"

# Faults, Ray, servers, browsers, learning. Real kills and clocks on a machine with other work: a
# failure is tried once more, and the summary names it.
test-slow: $(VENV)/.installed-test
	$(PYTEST) -m slow --reruns 1 -rR

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p veldt
	$(BIN)/mypy --strict --follow-imports=silent --cache-dir=.mypy_cache/strict $(PUBLIC_FACE)

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

# Wheel and sdist in dist/, then the wheel in an environment of its own, away from this tree.
release-check: | $(BIN)/python
	rm -rf dist build/release
	$(BIN)/python -m pip install --quiet "build>=1.2"
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	cd build/release && bin/python ../../tests/release/trial.py

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/throughput.py

# About 35 minutes on 2 cores; goes on where it was interrupted. Options: make bench-peers ARGS=--quick
bench-peers: $(VENV)/.installed-test $(PEERS:%=.peers/%/.installed)
	$(BIN)/python benchmarks/bench_peers.py $(ARGS)
	$(BIN)/python docs/generate.py --readme

# Hours on 2 cores; goes on where it was interrupted. Options: make bench-scores ARGS="--jobs 8"
bench-scores: $(VENV)/.installed-test .peers/sb3/.installed
	$(BIN)/python benchmarks/scores.py $(ARGS)
	$(BIN)/python docs/generate.py --readme

# Half an hour on 2 cores; continues where it was interrupted. Options: make claims ARGS=--full
claims: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.claims --out benchmarks/results/claims $(ARGS)

# Half an hour on 2 cores; trains what `veldt zoo` lists. Options: make zoo ARGS="cart_pole hopper"
zoo: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.zoo $(ARGS)

# Changes the core in 200 small ways and counts those that the quick tests notice.
mutants: $(VENV)/.installed-test
	$(BIN)/python benchmarks/mutants.py $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Veldt needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed-core: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$(TEST_EXTRAS)]"
	@touch $@ $(VENV)/.installed-core

$(VENV)/.installed-docs: $(SOURCES) | $(VENV)/.installed-core
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	@touch $@

# Sample Factory's numpy has wheels for Python 3.11 and 3.12.
.peers/%/.installed: benchmarks/peers/%.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python -m pip install --quiet -r $<
	@touch $@
