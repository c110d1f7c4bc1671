"""Owns the user's end of the mesh: command line, one-machine launcher and Python client.

`Client` and `AsyncClient` talk to a running mesh; `python -m stagemesh` is the command line.
They are imported when they are first used: the command line must not wait for what it does not use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from runtime.version import VERSION

if TYPE_CHECKING:
    from runtime.rpc.tls import trusting
    from stagemesh.client.async_client import AsyncClient
    from stagemesh.client.completion import Completion
    from stagemesh.client.rpc_error import StagemeshRpcError
    from stagemesh.client.state import MeshState
    from stagemesh.client.sync_client import Client
    from stagemesh.client.types import (
        Chat,
        ChatMessage,
        Choice,
        FinishReason,
        GenerationRequest,
        JsonSchema,
        Model,
        PromptToken,
        Regex,
        Sampling,
        TokenIds,
        Update,
    )

__version__ = VERSION

_HOMES: Final = {
    "AsyncClient": "stagemesh.client.async_client",
    "Chat": "stagemesh.client.types",
    "ChatMessage": "stagemesh.client.types",
    "Choice": "stagemesh.client.types",
    "Client": "stagemesh.client.sync_client",
    "Completion": "stagemesh.client.completion",
    "FinishReason": "stagemesh.client.types",
    "GenerationRequest": "stagemesh.client.types",
    "JsonSchema": "stagemesh.client.types",
    "MeshState": "stagemesh.client.state",
    "Model": "stagemesh.client.types",
    "PromptToken": "stagemesh.client.types",
    "Regex": "stagemesh.client.types",
    "Sampling": "stagemesh.client.types",
    "StagemeshRpcError": "stagemesh.client.rpc_error",
    "TokenIds": "stagemesh.client.types",
    "Update": "stagemesh.client.types",
    "trusting": "runtime.rpc.tls",
}

__all__ = [
    "AsyncClient",
    "Chat",
    "ChatMessage",
    "Choice",
    "Client",
    "Completion",
    "FinishReason",
    "GenerationRequest",
    "JsonSchema",
    "MeshState",
    "Model",
    "PromptToken",
    "Regex",
    "Sampling",
    "StagemeshRpcError",
    "TokenIds",
    "Update",
    "__version__",
    "trusting",
]


def __getattr__(name: str) -> object:
    """What the package offers, from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
