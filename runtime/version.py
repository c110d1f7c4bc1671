"""The version of this build and of the protocol between workers and coordinator.

`PROTOCOL_VERSION` increases when a worker of the previous build can no longer join a mesh.
"""

from typing import Final

VERSION: Final = "0.1.0"
PROTOCOL_VERSION: Final = 3
BUILD: Final = f"stagemesh {VERSION}"
