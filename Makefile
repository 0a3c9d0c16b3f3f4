# make demo: install and pack the built-in demo · make test: install and run the tests · make docs: the site, into site/
# make gpu: all that a GPU shows, in eight minutes, on the page gpu.md; make gpu DRY=1: whether it runs, on a CPU
# make test-slow PART=kills: one part of the slow tests (tests/support/slow_parts.py lists them); without PART, all
PYTHON ?= python3
VENV ?= .venv
# two for each core: many tests wait for a server, a child or the disk
WORKERS ?= $(shell $(PYTHON) -c "import os; print(2 * os.cpu_count())")
RUN = $(VENV)/bin/python

.PHONY: demo test test-slow test-cpu lint docs bench gpu pictures clean
# OMP_NUM_THREADS: tests run on all cores already, and threads that wait for one another spin
# PYTHONDONTWRITEBYTECODE: tests start hundreds of processes, each of which would compile the package anew
test test-slow test-cpu: export OMP_NUM_THREADS = 1
test test-slow test-cpu: export PYTHONDONTWRITEBYTECODE =

demo: $(VENV)/.demo
	$(RUN) -m energon_pack +model=qwen2_5_vl

test: $(VENV)/.dev
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.dev
	PYTHONPATH=tests $(RUN) -m support.slow_parts $(PART)

test-cpu: $(VENV)/.dev
	rm -f test-cpu.jsonl
	TEST_CPU=test-cpu.jsonl $(RUN) -m pytest

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

bench: $(VENV)/.dev
	$(RUN) -W ignore benchmarks/lengths.py
	$(RUN) benchmarks/planner.py
	$(RUN) benchmarks/composition.py
	$(RUN) benchmarks/omnibal.py
	$(RUN) benchmarks/writer.py
	$(RUN) -W ignore benchmarks/reference.py
	$(RUN) -W ignore benchmarks/loading.py
	$(RUN) benchmarks/jsonl.py
	$(RUN) benchmarks/whole.py
	PYTHONPATH=tests $(RUN) -W ignore benchmarks/stores.py

gpu: $(VENV)/.dev
	$(RUN) benchmarks/gpu_all.py $(if $(DRY),--dry)

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

pictures: $(VENV)/.dev
	$(RUN) benchmarks/pictures.py

clean:
	rm -rf $(VENV) build dist packed site
