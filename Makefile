# offhook: `make run` serves, `make test` tests; both set up what they need first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: run qwen qwen-asr-official qwen-tts-official test test-all lint format bench lock licences audit size clean

run: $(VENV)/.runtime
	$(BIN)/offhook serve $(ARGS)

# What the Qwen3 engines need: torch, which is large.
qwen: $(VENV)/.qwen

# The Qwen3 packages of their authors, each in an environment of its own: .venv-qwen-asr,
# .venv-qwen-tts.
qwen-asr-official: .venv-qwen-asr/.made
qwen-tts-official: .venv-qwen-tts/.made

# In two halves at once: one computes, the other mostly waits for calls that last as long as they last.
FIRST := tests/media tests/pipeline tests/signaling tests/telephony/carriers tests/web/speech_api \
	tests/deploy tests/bench tests/benchmarks tests/support $(wildcard tests/test_*.py)
test: $(VENV)/.test lint audit
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
	for name in media loss; do $(BIN)/python -m benchmarks $$name || exit 1; done
	for name in turns edge; do $(BIN)/offhook bench $$name || exit 1; done

# Packages are installed exactly as locked, without resolving: the resolver would add what the lock
# leaves out on purpose (see requirements.in).
$(VENV)/.runtime: requirements.lock requirements-espeak.lock debian-packages.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offhook needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	sh deploy/install-packages.sh debian-packages.txt
	sh deploy/install-voice.sh $(BIN)/python
	touch $@

$(VENV)/.qwen: $(VENV)/.runtime requirements-qwen.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-qwen.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	touch $@

.venv-%/.made: requirements-%-official.lock debian-packages.txt pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	sh deploy/install-packages.sh debian-packages.txt
	touch $@

# Oracles: where they cannot be had, the tests that ask them are skipped.
$(VENV)/.test: $(VENV)/.qwen requirements-dev.lock requirements-oracles.lock debian-packages-test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-oracles.lock || echo "without some oracles of the tests"
	sh deploy/install-packages.sh debian-packages-test.txt
	touch $@

# Needs uv (pip install uv).
LOCK_ALL := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --no-emit-find-links \
	--no-emit-package resampy --no-emit-package sounddevice
LOCK := $(LOCK_ALL) --no-emit-package numba --no-emit-package llvmlite
# librosa, of these packages, wants numba.
LOCK_OFFICIAL := $(LOCK_ALL) --override requirements-official-overrides.txt
lock:
	$(LOCK) requirements.in -o requirements.lock
	$(LOCK) requirements-espeak.in -o requirements-espeak.lock
	$(LOCK) requirements-qwen.in -o requirements-qwen.lock
	$(LOCK) requirements-dev.in -o requirements-dev.lock
	$(LOCK_ALL) requirements-audit.in -o requirements-audit.lock
	$(LOCK) --override requirements-oracles-overrides.txt requirements-oracles.in -o requirements-oracles.lock
	$(LOCK) --no-emit-package docopt -c requirements-qwen.lock requirements-cuda.in -o requirements-cuda.lock
	$(LOCK_OFFICIAL) requirements-qwen-asr-official.in -o requirements-qwen-asr-official.lock
	$(LOCK_OFFICIAL) requirements-qwen-tts-official.in -o requirements-qwen-tts-official.lock

# The tables of docs/licences.md, from what the packages say.
licences: $(VENV)/.test
	$(BIN)/python deploy/licences.py

# Licences nobody has looked at, and known vulnerabilities where a database of them can be reached.
SHIPPED := requirements.lock requirements-qwen.lock requirements-cuda.lock
audit: $(VENV)/.test .venv-audit/.made
	$(BIN)/python deploy/licences.py --check
	test ! -e .venv-audit/.made || .venv-audit/bin/python deploy/audit.py $(SHIPPED)

.venv-audit/.made: requirements-audit.lock
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $< \
		&& touch $@ || echo "without pip-audit: known vulnerabilities are not looked for"

size: $(VENV)/.runtime
	du -sm $(VENV)

clean:
	rm -rf $(VENV) .venv-audit
