# Every target sets itself up: a machine needs Python 3.11 or later (with venv) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export KERAS_BACKEND := jax
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := setup
.PHONY: setup demo test table keras-tests torch-tests integrations lint docs bench soak clean

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

# docs/what-is-exact.md from what the tests find, in their large profile.
table: $(STAMP)
	$(BIN)/python -m tests.laws.table

# An environment $(1) over the first one, with the packages of $(2): what is large or foreign stays out of the rest.
define beside
	$(PYTHON) -m venv --without-pip $(1)
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $(1)/lib/$$(ls $(1)/lib)/site-packages/base.pth
	$(1)/bin/python -m pip install --quiet --no-deps --require-hashes -r $(2)
endef

# Keras's own tests, routed through our loop, beside TensorFlow.
keras-tests: $(STAMP)
	$(call beside,$(VENV)-keras,tests/keras_own/tensorflow.txt)
	$(VENV)-keras/bin/python -m tests.keras_own

# PyTorch's loaders as data.
torch-tests: $(STAMP)
	$(call beside,$(VENV)-torch,tests/torch_own/torch.txt)
	$(VENV)-torch/bin/python -m pytest tests/torch_own $(ARGS)

# Each integration is a distribution of its own, with its own tests.
integrations: $(STAMP)
	$(call beside,$(VENV)-grain,integrations/grain/grain.txt)
	$(VENV)-grain/bin/python -m pip install --quiet --no-deps --no-build-isolation -e integrations/grain
	cd integrations/grain && PYTHONPATH=$(CURDIR) $(CURDIR)/$(VENV)-grain/bin/python -m pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m bench

# Runs that are killed at random moments; `make soak ARGS="--kills 8"` is a short one.
soak: $(STAMP)
	$(BIN)/python -m bench.kill_soak $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-keras $(VENV)-torch $(VENV)-grain build dist site demo-out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
