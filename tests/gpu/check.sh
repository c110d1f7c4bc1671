#!/usr/bin/env bash
# The correctness core on one GPU, then one speed table; under 4 minutes once `make setup` is done.
set -euo pipefail
cd "$(dirname "$0")/../.."
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
.venv/bin/python -m pytest -q tests/gpu/gpu_suite.py
.venv/bin/python -m benchmarks.serving --pp 2 --repeats 1
