# offhook: `make run` serves, `make cpu` with better engines on a CPU, `make test` tests; each sets up
# what it needs first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Servers and tests start processes by the hundred: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run cpu qwen espeak ray qwen-asr-official qwen-tts-official test test-all test-asr-official test-tts-official lint format bench lock licences reference docs audit size clean

run: $(VENV)/.runtime
	$(BIN)/offhook serve $(ARGS)

# The server with the best engines of a machine without a GPU: it talks at once, downloads their
# models meanwhile (`offhook models list` has the sizes), and new calls move over.
cpu: $(VENV)/.cpu
	$(BIN)/offhook serve --engines auto $(ARGS)

# What the Qwen3 engines need: torch, which is large.
qwen: $(VENV)/.qwen

# eSpeak NG (GPL): a voice for some hundred languages, in a process of its own.
espeak: $(VENV)/.espeak

# Ray Serve, which places workers on many machines: an environment of its own, .venv-ray.
ray: .venv-ray/.made

# The Qwen3 packages of their authors, each in an environment of its own: .venv-qwen-asr,
# .venv-qwen-tts.
qwen-asr-official: .venv-qwen-asr/.made
qwen-tts-official: .venv-qwen-tts/.made

# In nine parts at once, about as long each: most of them wait for calls that last as long as they
# last. What is in no part is the ninth.
COMPUTING := tests/pipeline/engines tests/media tests/fuzz
TALKING := tests/pipeline/conversation tests/pipeline/speech tests/testing
CALLING := tests/browser tests/web/speech_api
JOINING := tests/web/edge/rooms tests/web/edge/queues tests/web/edge/transfers tests/web/campaigns
SERVING := $(wildcard tests/web/edge/test_*.py) \
	$(filter-out %/agents/ %/rooms/ %/queues/ %/transfers/ %/__pycache__/,$(wildcard tests/web/edge/*/))
ANSWERING := tests/web/edge/agents tests/web/realtime tests/web/records
WORKING := tests/web/workers tests/deploy tests/benchmarks
PHONING := tests/telephony tests/signaling
PARTS := COMPUTING TALKING CALLING JOINING SERVING ANSWERING WORKING PHONING
# What has failed is run once more, with nothing beside: a machine that is too busy fails tests that
# talk in real time, and what is wrong fails again.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow"
REST = $(foreach part,$(PARTS),$(addprefix --ignore ,$($(part))))
AGAIN = --last-failed --last-failed-no-failures none
test: $(VENV)/.test
	@failed=0; ($(LINT) && $(MAKE) audit) >$(VENV)/lint.log 2>&1 & lint=$$!; \
	$(foreach part,$(PARTS),$(PYTEST) -o cache_dir=$(VENV)/.$(part) $($(part)) \
		>$(VENV)/$(part).log 2>&1 & $(part)=$$!;) \
	$(PYTEST) -o cache_dir=$(VENV)/.REST $(REST) $(ARGS); REST=$$?; \
	$(foreach part,$(PARTS),wait $$$(part); $(part)=$$?; cat $(VENV)/$(part).log;) \
	wait $$lint || failed=1; cat $(VENV)/lint.log; \
	$(foreach part,REST $(PARTS),if [ $$$(part) -eq 1 ]; then \
		echo "once more, with nothing beside: what has failed of $(part)"; \
		$(PYTEST) -o cache_dir=$(VENV)/.$(part) $(AGAIN) $($(part)) || failed=1; \
		elif [ $$$(part) -ne 0 ]; then failed=1; fi;) \
	exit $$failed

# Property tests draw new examples; what fails is kept in .hypothesis, and tried first the next time.
test-all: $(VENV)/.test lint test-tts-official
	$(BIN)/python -m pytest --examples 200 $(ARGS)

# Our engines beside the official packages, in the environments of these.
test-asr-official test-tts-official: test-%-official: .venv-qwen-%/.test
	.venv-qwen-$*/bin/python -m pytest tests/pipeline/engines/official/test_$*.py

LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
lint: $(VENV)/.test
	$(LINT)

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.runtime
	for name in media loss turns edge; do $(BIN)/offhook bench $$name || exit 1; done

# Packages are installed exactly as locked, without resolving: the resolver would add what the lock
# leaves out on purpose (see [tool.uv] in pyproject.toml). `$(call install,ENVIRONMENT,PARTS)`
install = $(1)/bin/python deploy/locked.py --without-torch $(2) >$(1)/locked.txt \
	&& $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(1)/locked.txt
# In the version of the lock, without a hash: which build fits depends on the machine.
install_torch = $(1)/bin/python -m pip install --quiet --disable-pip-version-check \
	$(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' deploy/requirements.lock)
LOCK := deploy/requirements.lock deploy/locked.py pyproject.toml
NATIVE := $(wildcard offhook/media/native/*.[ch])

# The last step but two compiles the path of packets, where there is a C compiler; CC=false does without.
$(VENV)/.runtime: $(LOCK) $(NATIVE) benchmarks/pyproject.toml deploy/debian-packages.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offhook needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,$(VENV),base)
	rm -f offhook/media/native/*.so
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--editable . --editable ./benchmarks
	sh deploy/install-packages.sh deploy/debian-packages.txt
	sh deploy/install-voice.sh $(BIN)/python
	touch $@

$(VENV)/.qwen: $(VENV)/.runtime
	$(call install,$(VENV),base qwen)
	$(call install_torch,$(VENV))
	touch $@

$(VENV)/.cpu: $(VENV)/.runtime deploy/cpu_torch.py
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python deploy/cpu_torch.py
	$(call install,$(VENV),base qwen)
	touch $@

$(VENV)/.espeak: $(VENV)/.runtime
	$(call install,$(VENV),base espeak)
	touch $@

.venv-ray/.made: deploy/requirements-ray.lock $(LOCK)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(call install,$(@D),base ray)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

.venv-%/.made: deploy/requirements-%-official.lock $(LOCK) deploy/debian-packages.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(call install,$(@D),base $*-official)
	$(call install_torch,$(@D))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	sh deploy/install-packages.sh deploy/debian-packages.txt
	touch $@

.venv-qwen-asr/.test .venv-qwen-tts/.test: %/.test: %/.made
	$(call install,$(@D),official-test)
	touch $@

# Oracles: where they cannot be had, the tests that ask them are skipped.
$(VENV)/.test: $(VENV)/.qwen deploy/debian-packages-test.txt
	sh deploy/install-packages.sh deploy/debian-packages-test.txt & packages=$$!; \
	$(call install,$(VENV),base espeak knowledge mcp postgres qwen redis s3 tracing wyoming lint test) \
		&& wait $$packages
	$(call install,$(VENV),oracles) || echo "without some oracles of the tests"
	touch $@

# Needs uv (pip install uv). Not uv.lock: that names the index which it was made with, and pip does
# not read it. numba and llvmlite (200 MB, for resampling that is not used here) are pipecat-ai's; of
# the official packages, librosa does want them. httptools and watchfiles, which uvicorn does
# without, are nanio's; Ray does want them.
UV_LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" --no-emit-index-url --no-emit-find-links pyproject.toml
lock:
	$(UV_LOCK) --no-emit-package numba --no-emit-package llvmlite \
		--no-emit-package httptools --no-emit-package watchfiles \
		--extra espeak --extra knowledge --extra mcp --extra postgres --extra qwen --extra redis --extra s3 --extra tracing --extra wyoming \
		--group audit --group docs --group lint --group oracles --group test -o deploy/requirements.lock
	$(UV_LOCK) --no-emit-package numba --no-emit-package llvmlite --extra ray -o deploy/requirements-ray.lock
	for extra in qwen-asr-official qwen-tts-official; do \
		$(UV_LOCK) --extra $$extra -o deploy/requirements-$$extra.lock || exit 1; \
	done

# The tables of docs/licences.md, from what the packages say.
licences: $(VENV)/.test
	$(BIN)/python -m deploy.licences

# The pages of docs/reference, from the code, and the list of all pages, docs/llms.txt.
reference: $(VENV)/.runtime
	$(BIN)/python -m deploy.reference
	$(BIN)/python -m deploy.llms

# The documents as a site, in build/site, which can be read from there; a broken link is an error.
docs: .venv-docs/.made
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/.made: $(LOCK)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(call install,$(@D),docs)
	touch $@

# Licences nobody has looked at, and known vulnerabilities where a database of them can be reached.
audit: $(VENV)/.test .venv-audit/.made
	$(BIN)/python -m deploy.licences --check
	$(BIN)/python deploy/locked.py base knowledge mcp postgres qwen redis s3 tracing wyoming >$(VENV)/shipped.txt
	test ! -e .venv-audit/.made || .venv-audit/bin/python deploy/audit.py $(VENV)/shipped.txt

.venv-audit/.made: $(LOCK)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(call install,$(@D),audit) \
		&& touch $@ || echo "without pip-audit: known vulnerabilities are not looked for"

size: $(VENV)/.runtime
	du -sm $(VENV)

clean:
	rm -rf $(VENV) .venv-audit .venv-docs .venv-ray offhook/media/native/*.so
