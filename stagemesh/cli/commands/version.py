"""Implements `stagemesh version`: installed versions, for bug reports."""

import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from runtime.version import PROTOCOL_VERSION, VERSION

_PACKAGES = ("torch", "grpcio", "protobuf", "transformers", "tokenizers", "safetensors")


def version() -> None:
    """Show the versions of stagemesh and of the packages that it uses."""
    lines = [
        f"stagemesh {VERSION} (protocol {PROTOCOL_VERSION})",
        f"python {platform.python_version()} on {platform.platform()}",
        *(f"{package} {_version_of(package)}" for package in _PACKAGES),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _version_of(package: str) -> str:
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return "(not installed)"
