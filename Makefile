# Set-up is done once per change of constraints.txt or pyproject.toml; the stamp file is .venv/.ready.
#
# torch: the index that pip uses by default (PyPI) serves the CUDA build on Linux, with gigabytes of libraries that
# nothing here needs. So the CPU build is installed first, alone, and everything else after it:
#   1. a torch of the pinned version that is already in .venv stays (also your own GPU build);
#   2. else "torch==VERSION+cpu" from the indexes that pip is configured with (PyPI has none: this fails at once);
#   3. else from TORCH_INDEX, PyTorch's own index of CPU builds;
#   4. else, on macOS only, from PyPI, whose build for macOS has no CUDA.
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
WORKERS ?= 2
MODEL ?= smollm2-135m-instruct

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check
stamp := $(VENV)/.ready
witnesses := $(VENV)/.witnesses
untraced := tests/backends/triton tests/backends/ascend tests/backends/export
# Tests of a folder stay with one worker as long as there is work for both: what a module's tests share is made once.
pytest := $(bin)/python -m pytest -n $(WORKERS) --dist worksteal --durations=8

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup torch model demo test quick coverage lint gpu ascend-kernels clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(stamp) ## create .venv with the pinned dependencies and an editable specc

$(stamp): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "specc needs Python 3.11 or later: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(bin)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(pip) install -qq --constraint constraints.txt setuptools wheel
	@$(MAKE) --no-print-directory torch
	@echo "installing the pinned dependencies"
	@$(pip) install -qq --constraint constraints.txt --no-build-isolation --editable '.[fetch,test,lint]'
	@touch $@

torch:
	@if $(bin)/python -c 'import sys, importlib.metadata as m; \
	    sys.exit(m.version("torch").split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null; then \
	  exit 0; \
	fi; \
	echo "installing torch $(TORCH_VERSION), CPU build"; \
	if $(pip) install --quiet --no-deps "torch==$(TORCH_VERSION)+cpu" 2>/dev/null; then exit 0; fi; \
	if $(pip) install --quiet --no-deps --retries 1 --timeout 20 \
	    --index-url "$(TORCH_INDEX)" "torch==$(TORCH_VERSION)"; then exit 0; fi; \
	if [ "$$(uname -s)" = Darwin ] && $(pip) install --quiet --no-deps "torch==$(TORCH_VERSION)"; then exit 0; fi; \
	echo "no CPU build of torch $(TORCH_VERSION) was found. Name an index that has one:" >&2; \
	echo "  make TORCH_INDEX=URL setup" >&2; \
	echo "or install torch $(TORCH_VERSION) of any kind into $(VENV) yourself, and run make again." >&2; \
	exit 2

# What tests of the Ascend, ONNX and MLIR targets run their output with: about 260 MB, once, and not needed by the demo.
# The torch_npu wheel is fetched into the cache and unpacked there, never installed: it would break `import torch`.
$(witnesses): $(stamp)
	@echo "installing ONNX, ONNX Runtime, torch-mlir and IREE; fetching torch_npu (about 260 MB, once)"
	@$(pip) install -qq --constraint constraints.txt --no-build-isolation --editable '.[onnx,mlir,ascend]' \
	  && $(bin)/specc fetch torch-npu \
	  || { echo "the packages that check the Ascend, ONNX and MLIR targets could not be had: check the network and pip's" >&2; \
	       echo "index settings, then run make again. make demo and specc's other targets work without them." >&2; exit 2; }
	@touch $@

model: $(stamp)
	@$(bin)/specc fetch $(MODEL)

demo: model ## decode real text losslessly with a small real model on the CPU
	@$(bin)/python -m specc.bench.demo --model $(MODEL)

# Types take one processor for most of a minute: quick tests run beside them.
test: $(stamp) model $(witnesses) ## lint, types and all tests: quick ones first
	@$(MAKE) --no-print-directory -j 2 lint quick
	$(pytest) -m slow

quick: $(stamp) model $(witnesses) ## the quick tests alone
	$(pytest) -m "not slow"

# Coverage is counted where it says most, for passes and backends by their own tests, and apart: tracing doubles their
# time and finds no faults. Triton's kernels and GE graphs run in interpreters, which tracing would slow down most.
coverage: $(stamp) $(witnesses) ## which lines of passes and backends their own quick tests run (optional)
	$(pytest) -m "not slow" tests/passes tests/backends $(patsubst %,--ignore %,$(untraced)) \
	  --cov=passes --cov=backends/reference --cov=backends/printing --cov-config=pyproject.toml --cov-report=term:skip-covered

lint: $(stamp) ## ruff and mypy --strict
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

# .venv needs a torch with CUDA for these (see `torch`); sanitizer runs come after `check`, whose kernels are kept.
gpu := build/gpu
checks := tests/backends/triton/gpu
gpu: $(stamp) model ## what only an NVIDIA GPU shows: modules against the reference, compute-sanitizer, long runs (optional)
	$(bin)/python -m tests.backends.triton.gpu.prepare $(gpu)
	$(bin)/python $(checks)/check.py $(gpu) --output $(gpu)/gpu_modules.json --seconds 900
	$(bin)/python $(checks)/sanitize.py $(gpu) --output $(gpu)/sanitizer.json --tool memcheck --tool racecheck --seconds 1800
	$(bin)/specc bench soak --model weights/gdn-15m --spec specs/gdn-15m-tree.yaml --dtype float32 --batch 64 --length 640 --output $(gpu)
	$(bin)/specc bench soak --model $(MODEL) --spec specs/smollm2-prompt-lookup-tree.yaml --batch 64 --length 640 --output $(gpu)

# triton-ascend installs a package called triton, so it gets an environment of its own; about 220 MB, once.
kernels := .venv-ascend
$(kernels)/.ready: backends/ascend/toolchain/pins.txt
	@test -x $(kernels)/bin/python || $(PYTHON) -m venv $(kernels)
	@$(kernels)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --requirement $< \
	  || { echo "triton-ascend and ascendnpu-ir could not be had for this Python: there are wheels for Linux and Python 3.11;" >&2; \
	       echo "make PYTHON=python3.11 ascend-kernels. Nothing else needs them." >&2; exit 2; }
	@touch $@

ascend-kernels: $(stamp) $(kernels)/.ready ## compile kernels for Ascend as far as its open compilers go (optional)
	@$(bin)/specc doctor --ascend

clean: ## remove build outputs and caches
	rm -rf build dist *.egg-info .coverage* htmlcov .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./$(kernels) -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean: clean ## and the virtual environment
	rm -rf $(VENV) $(kernels)
