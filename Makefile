# offhook: `make run` serves, `make test` tests; both set up what they need first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: run qwen test test-all lint format bench lock size clean

run: $(VENV)/.runtime
	$(BIN)/offhook serve $(ARGS)

# What the Qwen3 engines need: torch, which is large.
qwen: $(VENV)/.qwen

# In two halves at once: one computes, the other mostly waits for calls that last as long as they last.
FIRST := tests/media tests/pipeline tests/signaling tests/telephony/carriers tests/web/speech
test: $(VENV)/.test lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -o cache_dir=$(VENV)/.first $(FIRST) \
		>$(VENV)/first.log 2>&1 & first=$$!; \
	$(BIN)/python -m pytest -m "not slow" $(FIRST:%=--ignore %) $(ARGS); \
	second=$$?; wait $$first; first=$$?; cat $(VENV)/first.log; exit $$((first || second))

test-all: $(VENV)/.test lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.runtime
	for name in media loss turns edge; do $(BIN)/offhook bench $$name || exit 1; done

# Packages are installed exactly as locked, without resolving: the resolver would add what the lock
# leaves out on purpose (see requirements.in).
$(VENV)/.runtime: requirements.lock debian-packages.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offhook needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	sh deploy/install-packages.sh debian-packages.txt
	touch $@

$(VENV)/.qwen: $(VENV)/.runtime requirements-qwen.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-qwen.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	touch $@

# The carriers' own libraries are oracles: where they cannot be had, the tests that ask them are
# skipped.
$(VENV)/.test: $(VENV)/.qwen requirements-dev.lock requirements-carriers.lock debian-packages-test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-carriers.lock || echo "without the carriers' own libraries"
	sh deploy/install-packages.sh debian-packages-test.txt
	touch $@

# Needs uv (pip install uv).
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --no-emit-find-links --no-emit-package numba \
	--no-emit-package llvmlite --no-emit-package resampy --no-emit-package sounddevice
lock:
	$(LOCK) requirements.in -o requirements.lock
	$(LOCK) requirements-qwen.in -o requirements-qwen.lock
	$(LOCK) requirements-dev.in -o requirements-dev.lock
	$(LOCK) requirements-carriers.in -o requirements-carriers.lock

size: $(VENV)/.runtime
	du -sm $(VENV)

clean:
	rm -rf $(VENV)
