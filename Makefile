# Feedline. `make` explains the targets; each does all of its own set-up.

VENV := .venv
PYTHON := $(VENV)/bin/python
# Files are compiled when they are first imported: most of torch and TensorFlow never is.
PIP := $(PYTHON) -m pip install -q --disable-pip-version-check --no-compile
SETUP := .setup
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml \
	$(wildcard docs/errors/*.md)
# Which JPEG decoder can be built here, found out by tools/system-tools.
JPEG = $(shell cat $(SETUP)/jpeg)
FEATURES = --no-default-features --features $(JPEG)
# Tests compare the two decoders. The package, its tests and the linter have one set of features, so that no crate is
# compiled twice.
TESTED = --no-default-features --features $(JPEG),jpeg-rust
# Many tests wait for other processes: more of them than processors keep the processors busy.
TEST_PROCESSES ?= $(shell expr $$(nproc) + 2)
# Prints one line per step with its time; what the step prints is shown if it fails.
STEP = @tools/step
# Some machines have cargo-nextest, all have cargo test.
RUST_TEST = $(shell cargo nextest --version >/dev/null 2>&1 && echo "cargo nextest run --no-fail-fast --cargo-profile" || echo "cargo test --profile")

# What runs with older versions of torch: all tests that need no other framework.
TORCH_TESTS = $(sort $(wildcard tests/test_torch_*.py) tests/test_executor.py tests/test_executor_faults.py \
	tests/test_open_files.py tests/test_arguments.py tests/faults)

.PHONY: help demo test test-rust test-python test-versions check check-rust check-python audit fix bench fuzz attack
.DEFAULT_GOAL := help

help: ## explain the targets (the default)
	@echo "Feedline: the data loader that does not die. The targets, each of which sets up what it needs:"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "The first build takes a few minutes; make test also installs torch and TensorFlow to compare with."

demo: $(SETUP)/native ## load a small data set with bad files in it, and kill workers in an epoch of Python code
	@feedline demo

test: test-rust test-python ## run all tests: Rust, Python against torch, TensorFlow and Pillow, the fuzz corpus
	$(PYTHON) -m pytest -q -m alone

test-rust: $(SETUP)/tested
	$(RUST_TEST) testing --workspace $(TESTED)
	cargo test -q --profile testing --workspace $(TESTED) --doc

test-python: $(SETUP)/tested $(SETUP)/test
	$(PYTHON) -m pytest -q -m "not alone" -n $(TEST_PROCESSES) --dist worksteal

test-versions: $(SETUP)/torch-oldest $(SETUP)/torch-middle $(SETUP)/tested ## run the torch tests with the oldest torch that is supported, and with one in the middle
	@for age in oldest middle; do \
		echo "the torch tests with $$(.venv-torch-$$age/bin/python -c 'import numpy, torch; print("torch", torch.__version__, "and NumPy", numpy.__version__)')"; \
		PATH=$(CURDIR)/.venv-torch-$$age/bin:$$PATH VIRTUAL_ENV=$(CURDIR)/.venv-torch-$$age PYTHONPATH=$(CURDIR)/python \
			.venv-torch-$$age/bin/python -m pytest -q $(TORCH_TESTS) || exit 1; \
	done

check: check-rust check-python ## formats, lints, types, stubs, licences, without changing a file

check-rust: $(SETUP)/tested
	cargo fmt --all --check
	cargo clippy -q --profile testing --workspace --all-targets $(TESTED) -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc -q --profile testing --workspace --exclude feedline-py --no-deps $(TESTED)
	$(PYTHON) tools/licences
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check bans licenses sources; fi

check-python: $(SETUP)/tested $(SETUP)/test
	ruff check
	ruff format --check
	mypy
	$(PYTHON) -m mypy.stubtest feedline._native

audit: $(SETUP)/audit ## look for known vulnerabilities, bad licences and banned crates (needs the internet)
	cargo deny check
	for file in requirements/*.txt; do $(SETUP)/audit-venv/bin/pip-audit --strict --no-deps --disable-pip -r $$file || exit 1; done

fix: $(SETUP)/test ## format, and fix what the linters can fix
	cargo fmt --all
	ruff check --fix
	ruff format

bench: $(SETUP)/release $(SETUP)/bench ## measure against torch, tf.data, DALI, webdataset and grain, side by side (about three hours)
	cargo build -q --release -p feedline-core --features testing,$(JPEG) --no-default-features --example bare
	$(PYTHON) benchmarks/images.py
	$(PYTHON) benchmarks/records.py
	$(PYTHON) benchmarks/workers.py
	$(PYTHON) benchmarks/policy.py
	$(PYTHON) benchmarks/memory.py
	$(PYTHON) benchmarks/cache.py
	$(PYTHON) benchmarks/autotune.py
	$(PYTHON) benchmarks/resume.py

fuzz: $(SETUP)/jpeg ## fuzz the decoders and the settings on from the corpus, 60 s each (FUZZ_SECONDS=...)
	tools/fuzz $${FUZZ_SECONDS:-60}

ATTACK_SECONDS ?= 3600

attack: $(SETUP)/tested $(SETUP)/test ## attack all fronts with random faults for an hour (ATTACK_SECONDS=..., see docs/attacks.md)
	$(PYTHON) tools/attack --seconds $(ATTACK_SECONDS)

# ---- what the targets need ----

$(SETUP)/crates: Cargo.lock
	@mkdir -p $(SETUP)
	$(STEP) "downloading the Rust crates" cargo fetch --locked
	@touch $@

$(SETUP)/jpeg: tools/system-tools Cargo.lock | $(SETUP)/crates
	@tools/system-tools $@

$(SETUP)/venv:
	@mkdir -p $(SETUP)
	$(STEP) "making the Python environment in $(VENV)" python3 -m venv $(VENV)
	@touch $@

$(SETUP)/demo: requirements/demo.txt | $(SETUP)/venv
	$(STEP) "installing NumPy and the build tool" $(PIP) -r $<
	@touch $@

$(SETUP)/test: requirements/test.txt | $(SETUP)/venv
	$(STEP) "installing torch, TensorFlow and the test tools (some minutes the first time)" $(PIP) -r $<
	$(STEP) "importing them once" $(PYTHON) -c "import torch, torchvision, tensorflow, lightning, accelerate, datasets, webdataset, transformers, torchdata, jax, orbax.checkpoint"
	@touch $@

# The built package is used where it lies: the same file serves every version of Python, torch and NumPy.
$(SETUP)/torch-%: requirements/torch-%.txt
	@mkdir -p $(SETUP)
	@echo "installing an older torch (some gigabytes the first time)"
	python3 -m venv .venv-torch-$*
	.venv-torch-$*/bin/python -m pip install -q -r $<
	@touch $@

# To compile cargo-deny takes minutes, so that it is no part of `make check`.
$(SETUP)/audit: | $(SETUP)/venv
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	python3 -m venv $(SETUP)/audit-venv
	$(SETUP)/audit-venv/bin/python -m pip install -q pip-audit
	@touch $@

$(SETUP)/bench: requirements/bench.txt $(SETUP)/test
	$(STEP) "installing DALI and grain" $(PIP) -r $<
	@touch $@

# The package as it is built last is the one in use: each of these makes the others old.
$(SETUP)/native: $(RUST_SOURCES) $(SETUP)/jpeg $(SETUP)/demo
	$(STEP) "compiling Feedline (about a minute the first time)" maturin develop --locked $(FEATURES)
	@rm -f $(SETUP)/tested $(SETUP)/release
	@touch $@

$(SETUP)/tested: $(RUST_SOURCES) $(SETUP)/jpeg $(SETUP)/demo
	$(STEP) "compiling Feedline for tests" maturin develop --locked --profile testing $(TESTED)
	@rm -f $(SETUP)/native $(SETUP)/release
	@touch $@

$(SETUP)/release: $(RUST_SOURCES) $(SETUP)/jpeg $(SETUP)/demo
	$(STEP) "compiling Feedline with all optimisations" maturin develop --locked --release $(FEATURES)
	@rm -f $(SETUP)/native $(SETUP)/tested
	@touch $@
