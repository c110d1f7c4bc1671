"""Copies between host and device: none on a CPU; downloads wait for their events."""

import asyncio
import threading

import pytest
import torch

from stage_worker.device.host_device_copy import Download, HostDeviceCopier

HIDDEN = torch.arange(6.0).view(2, 3)


def test_upload_on_a_cpu_returns_the_same_tensor() -> None:
    transfers = HostDeviceCopier(torch.device("cpu"))
    room = transfers.empty(2, 3, torch.bfloat16)
    assert (room.shape, room.dtype, room.is_pinned()) == ((2, 3), torch.bfloat16, False)
    assert transfers.upload(HIDDEN).wait() is HIDDEN


async def test_download_on_a_cpu_returns_the_same_tensor() -> None:
    transfers = HostDeviceCopier(torch.device("cpu"))
    (part, nothing) = await transfers.download((HIDDEN, None)).wait()
    assert part is HIDDEN
    assert nothing is None


async def test_download_waits_for_its_event_and_leaves_the_event_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        """The part of a CUDA event that `Download` uses."""

        def __init__(self) -> None:
            self._is_set = threading.Event()

        def synchronize(self) -> None:
            self._is_set.wait()

        def set(self) -> None:
            self._is_set.set()

    event = Event()
    waiting = asyncio.create_task(Download((HIDDEN,), event).wait())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    assert await waiting == (HIDDEN,)
