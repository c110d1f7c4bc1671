"""Owns the user's end of the mesh: command line, one-machine launcher and Python client.

`Client` and `AsyncClient` talk to a running mesh; `python -m stagemesh` is the command line.
"""

from runtime.version import VERSION
from stagemesh.client import AsyncClient
from stagemesh.generation import (
    Chat,
    ChatMessage,
    FinishReason,
    GenerationRequest,
    Model,
    Sampling,
    TokenIds,
    Update,
)
from stagemesh.rpc_error import StagemeshRpcError
from stagemesh.state import MeshState
from stagemesh.sync_client import Client

__version__ = VERSION

__all__ = [
    "AsyncClient",
    "Chat",
    "ChatMessage",
    "Client",
    "FinishReason",
    "GenerationRequest",
    "MeshState",
    "Model",
    "Sampling",
    "StagemeshRpcError",
    "TokenIds",
    "Update",
    "__version__",
]
