"""Owns this build's version and the version of the protocol between workers and coordinator.

`PROTOCOL_VERSION` rises when a worker of the previous build could no longer take part in a mesh.
"""

from typing import Final

VERSION: Final = "0.1.0"
PROTOCOL_VERSION: Final = 3
BUILD: Final = f"stagemesh {VERSION}"
