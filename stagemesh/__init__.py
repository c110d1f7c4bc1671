"""Exports the Python client; the command line is `stagemesh` or `python -m stagemesh`.

`Client` and `AsyncClient` connect to a running mesh. Exports are imported at first use, so that the
command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from runtime.version import VERSION

if TYPE_CHECKING:
    from runtime.protocol.inference_types import (
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
        Scheduling,
        TokenIds,
        Update,
    )
    from runtime.rpc.tls import trusting
    from stagemesh.client.async_client import AsyncClient
    from stagemesh.client.completion import Completion
    from stagemesh.client.rpc_error import StagemeshRpcError
    from stagemesh.client.state import MeshState
    from stagemesh.client.sync_client import Client

__version__ = VERSION

_MODULES: Final = {
    "AsyncClient": "stagemesh.client.async_client",
    "Chat": "runtime.protocol.inference_types",
    "ChatMessage": "runtime.protocol.inference_types",
    "Choice": "runtime.protocol.inference_types",
    "Client": "stagemesh.client.sync_client",
    "Completion": "stagemesh.client.completion",
    "FinishReason": "runtime.protocol.inference_types",
    "GenerationRequest": "runtime.protocol.inference_types",
    "JsonSchema": "runtime.protocol.inference_types",
    "MeshState": "stagemesh.client.state",
    "Model": "runtime.protocol.inference_types",
    "PromptToken": "runtime.protocol.inference_types",
    "Regex": "runtime.protocol.inference_types",
    "Sampling": "runtime.protocol.inference_types",
    "Scheduling": "runtime.protocol.inference_types",
    "StagemeshRpcError": "stagemesh.client.rpc_error",
    "TokenIds": "runtime.protocol.inference_types",
    "Update": "runtime.protocol.inference_types",
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
    "Scheduling",
    "StagemeshRpcError",
    "TokenIds",
    "Update",
    "__version__",
    "trusting",
]


def __getattr__(name: str) -> object:
    """Imports an exported name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
