"""Owns the user's end of the mesh: command line, one-machine launcher and Python client.

`Client` and `AsyncClient` talk to a running mesh; `python -m stagemesh` is the command line.
They are imported when they are first used: the command line must not wait for what it does not use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from runtime.version import VERSION

if TYPE_CHECKING:
    from runtime.rpc.tls import trusting
    from stagemesh.client import AsyncClient
    from stagemesh.completion import Completion
    from stagemesh.generation import (
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
    from stagemesh.rpc_error import StagemeshRpcError
    from stagemesh.state import MeshState
    from stagemesh.sync_client import Client

__version__ = VERSION

_HOMES: Final = {
    "AsyncClient": "stagemesh.client",
    "Chat": "stagemesh.generation",
    "ChatMessage": "stagemesh.generation",
    "Choice": "stagemesh.generation",
    "Client": "stagemesh.sync_client",
    "Completion": "stagemesh.completion",
    "FinishReason": "stagemesh.generation",
    "GenerationRequest": "stagemesh.generation",
    "JsonSchema": "stagemesh.generation",
    "MeshState": "stagemesh.state",
    "Model": "stagemesh.generation",
    "PromptToken": "stagemesh.generation",
    "Regex": "stagemesh.generation",
    "Sampling": "stagemesh.generation",
    "StagemeshRpcError": "stagemesh.rpc_error",
    "TokenIds": "stagemesh.generation",
    "Update": "stagemesh.generation",
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
