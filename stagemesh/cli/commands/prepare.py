"""Owns `stagemesh prepare`: a model brought into the form that workers load, ahead of serving."""

import sys

from rich.console import Console

from runtime.checkpoints.model_store import resolve_model
from stagemesh.display.progress import ProgressView


def prepare(model: str, /) -> None:
    """Download or convert a model ahead of serving, and print the folder that holds it.

    Nothing is done twice: serving, and preparing again, find the result in the cache
    ($STAGEMESH_CACHE, or stagemesh in the user's cache folder).

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id as org/name, or smollm2.
    """
    with ProgressView(Console(stderr=True)) as progress:
        folder = resolve_model(model, progress=progress.show_preparation)
    sys.stdout.write(f"{folder}\n")
