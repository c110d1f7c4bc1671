"""The device kind of each collective backend.

The coordinator compares it with the workers' device kinds before any loads weights; a worker
with its own device when it opens an epoch.
"""

from typing import Final

BACKEND_DEVICES: Final = {"shm": "cpu", "gloo": "cpu", "nccl": "cuda"}
