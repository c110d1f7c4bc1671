"""Which kind of device each collective backend serves, the same for coordinator and workers.

The coordinator compares it with what workers say of themselves before any loads weights; a worker
with its own device when it opens an epoch.
"""

from typing import Final

BACKEND_DEVICES: Final = {"shm": "cpu", "gloo": "cpu", "nccl": "cuda"}
