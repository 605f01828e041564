# Every target sets itself up: a machine needs Python 3.11 or later (with venv) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export KERAS_BACKEND := jax
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := setup
.PHONY: setup demo test keras-tests lint docs bench clean

setup: $(STAMP)

# Python puts a repaired environment over a half-made one, so an interrupted set-up needs no cleaning.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "xptrain needs Python 3.11 or later; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# `make test ARGS="tests/state -x"` runs a part of the suite.
test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

# Keras's own tests, routed through our loop. TensorFlow stays out of the environment of everything else.
keras-tests: $(STAMP)
	$(PYTHON) -m venv $(VENV)-keras
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $(VENV)-keras/lib/$$(ls $(VENV)-keras/lib)/site-packages/base.pth
	$(VENV)-keras/bin/python -m pip install --quiet --no-deps --require-hashes -r tests/keras_own/tensorflow.txt
	$(VENV)-keras/bin/python -m tests.keras_own

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) $(VENV)-keras build dist site demo-out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
