# Every target sets up .venv first when it is missing or pyproject.toml changed.
PYTHON ?=
VENV := .venv
READY := $(VENV)/.ready
# One test process for each core. `tests/conftest.py` groups the tests that share a mesh or a file, and
# orders the groups: those that start processes come first.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder
# Each process of the tests would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-clients test-clients-heavy test-compose test-fuzz test-ops test-faults test-wheel soak check coverage proto setup clean

help:
	@echo "make demo      start a 2-stage mesh on the bundled model and stream one answer"
	@echo "make test      lint, types, layers, protos, then the tests except the slow ones"
	@echo "make test-slow  the slow tests: the bundled model in every split, membership, a minute of kills"
	@echo "make test-compose  build the image, run meshes of containers; needs a Docker engine"
	@echo "make test-clients  the tests with outside clients only"
	@echo "make test-clients-heavy  lm-eval, guidellm and aiperf, in environments of their own"
	@echo "make test-fuzz  10,000 random requests at each API"
	@echo "make test-ops  a real Prometheus and a real browser against a mesh"
	@echo "make test-faults  kills, freezes, bad links and forged frames at every phase; takes ten minutes"
	@echo "make test-wheel  builds the wheel, installs it in a new environment and serves a model from it"
	@echo "make soak      load with random kills for ten minutes, and a table of what came of it"
	@echo "make check     lint, types, layers and protos only"
	@echo "make coverage  all tests, with a coverage report"
	@echo "make proto     regenerate protos/*_pb2*"
	@echo "make clean     remove the environment, caches and build outputs"
	@echo "All set up what they need in .venv; PYTHON=... chooses the interpreter."

demo: $(READY)
	@$(VENV)/bin/stagemesh demo

test: $(READY)
	@scripts/check
	@$(VENV)/bin/pytest $(PARALLEL) -m "not slow"

test-slow: $(READY)
	@$(VENV)/bin/pytest $(PARALLEL) --verbose --durations 10 -m slow

test-compose: $(READY)
	@$(VENV)/bin/pytest tests/compose/compose_suite.py

test-clients: $(READY)
	@$(VENV)/bin/pytest tests/clients

test-clients-heavy: $(READY)
	@scripts/client-tools
	@$(VENV)/bin/pytest tests/clients/heavy_suite.py

test-fuzz: $(READY)
	@$(VENV)/bin/pytest tests/coordinator/api/fuzz_suite.py

test-ops: $(READY)
	@scripts/ops-tools
	@$(VENV)/bin/pytest --verbose tests/ops/ops_suite.py tests/ops/live_page_suite.py

test-wheel: $(READY)
	@$(VENV)/bin/pytest --verbose tests/packaging/wheel_suite.py

test-faults: $(READY)
	@$(VENV)/bin/pytest $(PARALLEL) --verbose --durations 10 tests/faults/*_suite.py

soak: $(READY)
	@$(VENV)/bin/python -m tests.faults.soak

check: $(READY)
	@scripts/check

coverage: $(READY)
	@$(VENV)/bin/pytest $(PARALLEL) --cov --cov-report=term-missing:skip-covered

proto: $(READY)
	@scripts/protos

setup: $(READY)

$(READY): pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
