"""Fetches a model from the Hugging Face Hub; needs a network the first time.

Takes safetensors, configuration and tokenizer only, so pickled weights are not even downloaded.
"""

import io
from pathlib import Path
from typing import Any, Final

import huggingface_hub
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from huggingface_hub.utils.tqdm import tqdm

from runtime.checkpoints.progress import ProgressFn
from runtime.errors import ModelNotFoundError

# The error class of the HTTP library that the installed huggingface_hub uses.
HTTPError: Final[type[Exception]] = vars(huggingface_hub.errors)["HTTPError"]

_WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


def download_model(model: str, report: ProgressFn) -> Path:
    """Returns the local snapshot of a Hub id; downloads missing files only.

    Raises `ModelNotFoundError` with the Hub's or the network's own words.
    """
    phase = f"downloading {model}"
    report(phase, 0, 0)
    try:
        folder = huggingface_hub.snapshot_download(
            model, allow_patterns=list(_WANTED), tqdm_class=_bar_class(phase, report)
        )
    except (OSError, EntryNotFoundError, HFValidationError, HTTPError) as exc:
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise ModelNotFoundError(
            model=model,
            hint=f"there is no such folder here, and the Hub could not be asked ({reason});"
            f" check the name and the network, or give a local folder",
        ) from exc
    return Path(folder)


def _bar_class(phase: str, report: ProgressFn) -> type[tqdm]:
    """A progress bar without output, which reports the bytes on disk."""

    class ReportingBar(tqdm):
        def __init__(self, *args: Any, name: str | None = None, **kwargs: Any) -> None:
            self._counts_bytes = name == "huggingface_hub.snapshot_download"
            kwargs |= {"disable": False, "file": io.StringIO()}
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

        def display(self, *args: Any, **kwargs: Any) -> bool:
            if self._counts_bytes:
                report(phase, int(self.n), int(self.total or 0))
            return True

    return ReportingBar
