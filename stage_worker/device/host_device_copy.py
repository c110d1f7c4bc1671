"""Copies activations between the host and the device; on CUDA, while the device computes.

A CUDA device copies on a separate stream, from and to pinned memory: the next step's input and the
previous step's output are copied while a step computes. Events signal that a copy is complete. On a
CPU nothing is copied.

Shapes: T tokens, H this rank's interval of the hidden dimension, h a part of it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Upload:
    """An input that is being copied to the device."""

    hidden_TH: Tensor
    done: torch.cuda.Event | None = None

    def wait(self) -> Tensor:
        """The input; the device's current stream waits for the copy, the host does not."""
        if self.done is not None:
            stream = torch.cuda.current_stream(self.hidden_TH.device)
            stream.wait_event(self.done)
            self.hidden_TH.record_stream(stream)
        return self.hidden_TH


@dataclass(frozen=True, slots=True)
class Download:
    """An output's parts being copied to the host, contiguous [T, h], or None."""

    parts: tuple[Tensor | None, ...]
    done: torch.cuda.Event | None = None

    async def wait(self) -> tuple[Tensor | None, ...]:
        """Waits for the copies and returns the parts."""
        if self.done is not None:
            await asyncio.to_thread(self.done.synchronize)
        return self.parts


class HostDeviceCopier:
    """Starts the copies from and to one rank's device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def empty(self, num_tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        """An uninitialized host tensor; pinned for a CUDA device."""
        return torch.empty(num_tokens, width, dtype=dtype, pin_memory=self._stream is not None)

    def upload(self, hidden_TH: Tensor) -> Upload:
        """Begins the copy of a complete input. Thread-safe."""
        if self._stream is None:
            return Upload(hidden_TH)
        with torch.cuda.stream(self._stream):
            copied_TH = hidden_TH.to(self._device, non_blocking=True)
            return Upload(copied_TH, self._stream.record_event())

    def download(self, parts: Sequence[Tensor | None]) -> Download:
        """Begins the copy of an output; called on the device's thread.

        Returns once the output is computed, so that a step's time includes its computation.
        """
        if self._stream is None:
            return Download(tuple(parts))
        computed = torch.cuda.current_stream(self._device).record_event()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(computed)
            copied = tuple(None if part is None else self._to_host(part) for part in parts)
            done = self._stream.record_event()
        computed.synchronize()
        return Download(copied, done)

    def _to_host(self, part_Th: Tensor) -> Tensor:
        assert self._stream is not None
        num_tokens, width = part_Th.shape
        host_Th = self.empty(num_tokens, width, part_Th.dtype)
        host_Th.copy_(part_Th, non_blocking=True)
        part_Th.record_stream(self._stream)
        return host_Th
