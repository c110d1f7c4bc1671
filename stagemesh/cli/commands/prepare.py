"""Implements `stagemesh prepare`: downloads or converts a model before it is served."""

import sys

from rich.console import Console

from runtime.checkpoints.model_store import resolve_model
from stagemesh.display.progress import ProgressView


def prepare(model: str, /) -> None:
    """Download or convert a model before it is served, and print its folder.

    The result is kept in the cache ($STAGEMESH_CACHE, or stagemesh in the user's cache folder),
    where serve, coordinator and worker find it.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id such as org/name, or smollm2.
    """
    with ProgressView(Console(stderr=True)) as progress:
        folder = resolve_model(model, progress=progress.show_preparation)
    sys.stdout.write(f"{folder}\n")
