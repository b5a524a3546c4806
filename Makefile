# make demo    build everything, fetch a small model, plain decoding against speculative decoding
# make test    everything that must pass: lint, types, tests
#
# Needs Python 3.10 or newer with its venv module, a C++ compiler and make; the rest comes from the package index into
# $(VENV). A second run does only what has changed. `make help` lists the other verbs.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2-135m
PYTEST_ARGS ?=
WERROR ?= OFF
SHELL := bash

export PIP_DISABLE_PIP_VERSION_CHECK := 1

PY := "$(VENV)/bin/python"
PIP := $(PY) -m pip install -qq
# Stamps know their environment by a number, because make cannot handle file names with spaces.
STAMPS := .make/$(firstword $(shell printf '%s' "$(VENV)" | cksum))
NATIVE := CMakeLists.txt pyproject.toml vendor/fetch.py vendor/llama.cpp.toml $(wildcard csrc/*)
# A removed environment takes its stamps along.
$(shell test -x "$(VENV)/bin/python" || rm -rf $(STAMPS))

.PHONY: demo test lint format types unit build wheel portable-wheel cuda-check clean help
.DELETE_ON_ERROR:

demo: build ## build, fetch a small model, compare plain and speculative decoding
	$(PY) -m pyspec models fetch $(MODEL)
	$(PY) examples/demo.py

test: lint types unit ## everything that must pass

lint: $(STAMPS)/tools ## ruff and clang-format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	"$(VENV)/bin/clang-format" --dry-run --Werror csrc/*

format: $(STAMPS)/tools ## let the formatters write
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	"$(VENV)/bin/clang-format" -i csrc/*

types: $(STAMPS)/tools ## mypy
	$(PY) -m mypy

unit: $(STAMPS)/tools ## pytest; options in PYTEST_ARGS
	$(PY) -m pytest --numprocesses=auto --dist=worksteal $(PYTEST_ARGS)

build: $(STAMPS)/package ## the package, editable, in $(VENV)

wheel: $(STAMPS)/tools ## source distribution and wheel for this machine, in dist/
	$(PY) -m build

portable-wheel: $(STAMPS)/tools ## a wheel for any CPU of this kind, in dist/portable/
	$(PY) -m build --wheel --outdir dist/portable -C cmake.define.PYSPEC_PORTABLE=ON -C build-dir=build/portable

# Without a driver library to link (GGML_CUDA_NO_VMM), and with cuBLAS from its wheel.
cuda-check: $(STAMPS)/cuda ## configure with CUDA and compile the shim; needs nvcc and no GPU
	@command -v nvcc >/dev/null || { echo "make cuda-check: nvcc is not on the PATH; install the CUDA toolkit" >&2; exit 1; }
	export PATH="$$(cd "$(VENV)/bin" && pwd):$$PATH" && \
	blas=$$(python -c 'import nvidia, pathlib; print(next(pathlib.Path(nvidia.__path__[0]).rglob("libcublas.so.*")))') && \
	cmake -S . -B build/cuda -G Ninja --fresh -D PYSPEC_WERROR=ON \
		-D GGML_CUDA=ON -D GGML_CUDA_NO_VMM=ON -D CMAKE_CUDA_ARCHITECTURES=80 \
		-D CUDA_cublas_LIBRARY="$$blas" -D CUDA_cublasLt_LIBRARY="$${blas/cublas.so/cublasLt.so}" && \
	cmake --build build/cuda --target pyspec_objects

clean: ## remove what was built here, and the environment
	rm -rf .make build dist "$(VENV)" vendor/llama.cpp vendor/.llama.cpp.*

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(STAMPS)/venv:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "make: pyspec needs Python 3.10 or newer as '$(PYTHON)'; name another with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: '$(PYTHON)' has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP) --upgrade pip
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/package: $(NATIVE) | $(STAMPS)/venv
	@command -v "$${CXX:-c++}" >/dev/null || { echo "make: no C++ compiler; on Debian and Ubuntu: apt install g++" >&2; exit 1; }
	@echo "building pyspec and llama.cpp (minutes the first time)"
	$(PIP) -C cmake.define.PYSPEC_WERROR=$(WERROR) --editable ".[hub]"
	@touch $@

$(STAMPS)/tools: pyproject.toml $(STAMPS)/package
	$(PIP) "pyspec-llama[test,dev]"
	@touch $@

$(STAMPS)/cuda: | $(STAMPS)/venv
	$(PIP) cmake ninja nvidia-cublas
	@touch $@
