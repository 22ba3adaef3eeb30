# Needs Python 3.10 or newer, a C++20 compiler and make; everything else comes from the Python package index into .venv.
#
#   make run                  stream an answer (PROMPT="..." asks something else)
#   make test                 all tests, those with the default model included
#   make check                ruff, mypy --strict, C++ with warnings as errors
#   make build | bench | docs | clean | distclean

VENV   ?= .venv
PROMPT ?= How does inference work?
ARGS   ?=
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

NATIVE_FILES := CMakeLists.txt pyproject.toml $(shell find native -type f 2>/dev/null)

.PHONY: run test check build bench docs clean distclean
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

# The value as it was given: a prompt may hold dollar signs.
override PROMPT := $(value PROMPT)
export PROMPT

run: $(VENV)/.installed
	@$(BIN)/pelton run "$$PROMPT" $(ARGS)

# The model is fetched before the tests, which themselves use no network.
test: $(VENV)/.dev
	@model="$$($(BIN)/pelton pull smollm2)" && PELTON_TEST_MODEL="$$model" $(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/make_cli_docs.py --check
	$(BIN)/python docs/make_server_docs.py --check
	$(BIN)/python docs/make_grafana_dashboard.py --check
	$(BIN)/cmake -S . -B build/werror -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DPELTON_WERROR=ON \
	  -DPELTON_PYTHON=ON -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DCMAKE_BUILD_TYPE=Release -Wno-dev >/dev/null
	$(BIN)/cmake --build build/werror

build: $(VENV)/.installed

bench: $(VENV)/.installed
	@$(BIN)/pelton bench $(ARGS)

docs: $(VENV)/.dev
	$(BIN)/python docs/make_cli_docs.py
	$(BIN)/python docs/make_server_docs.py
	$(BIN)/python docs/make_grafana_dashboard.py

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(VENV)/.installed $(VENV)/.dev

distclean: clean
	rm -rf $(VENV)

# --- the virtual environment; each stamp is touched when its step has succeeded --------------------------------------

# The first Python that really runs and is new enough; PYTHON=/path/to/python chooses another.
$(VENV)/.created:
	@set -e; \
	for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11 python3.10 python); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "Pelton needs Python 3.10 or newer; none was found. Choose one with: make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	"$$found" -m venv $(VENV) || { \
	  echo "Python could not make a virtual environment; its venv module is often a package of its own (python3-venv)." >&2; \
	  rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.build-tools: $(VENV)/.created
	$(PIP) install "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	@touch $@

# Editable: Python files are used where they lie; the native module is rebuilt when a file of it has changed.
$(VENV)/.installed: $(VENV)/.build-tools $(NATIVE_FILES)
	$(PIP) install --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install --no-build-isolation --editable ".[dev]"
	@touch $@
