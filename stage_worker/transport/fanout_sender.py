"""Sends each step to all ranks of the next stage that take a part of this rank's output.

A step is sent on all links concurrently; the slowest link decides when the next step is sent. The
last stage has no links.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

from torch import Tensor

from protos import stage_pb2
from stage_worker.transport.stage_sender import LinkPlan, SendResult, StageSender


class FanoutSender:
    """One open stream per link; an async context manager."""

    def __init__(self, plans: Sequence[LinkPlan]) -> None:
        self.parts = tuple(plan.hidden_interval for plan in plans)
        self._plans = plans
        self._links: list[StageSender] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Waits until every receiving rank has accepted its stream."""
        async with AsyncExitStack() as stack:
            for plan in self._plans:
                self._links.append(await stack.enter_async_context(StageSender(plan)))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def read_credits(self) -> None:
        """Receives credits and watches the health of all receiving ranks.

        Raises when a stream ends; returns only if there are no links.
        """
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.read_credits())
                tasks.create_task(link.watch())

    async def send(
        self, header: stage_pb2.StepHeader, parts: Sequence[Tensor | None]
    ) -> SendResult:
        """Sends each link its part once it has a credit; the result sums over the links."""
        async with asyncio.TaskGroup() as tasks:
            sending = [
                tasks.create_task(link.send(header, part))
                for link, part in zip(self._links, parts, strict=True)
            ]
        sent = [task.result() for task in sending]
        return SendResult(
            ended_at=max(each.ended_at for each in sent),
            num_frames=sum(each.num_frames for each in sent),
            num_bytes=sum(each.num_bytes for each in sent),
        )
