"""The links to all ranks of the next stage that take a part of what this rank computes.

A step is sent on all of them at the same time, so that a slow one does not hold the others back
within a step; the slowest decides when the next step may go. Without a link, as on the last stage,
there is nothing to do.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

from torch import Tensor

from protos import stage_pb2
from stage_worker.transport.stage_sender import LinkPlan, SentStep, StageSender


class FanoutSender:
    """One open stream for each link; use it as an async context manager."""

    def __init__(self, plans: Sequence[LinkPlan]) -> None:
        self.parts = tuple(plan.hidden_interval for plan in plans)
        self._plans = plans
        self._links: list[StageSender] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Wait until every rank has taken its stream."""
        async with AsyncExitStack() as stack:
            for plan in self._plans:
                self._links.append(await stack.enter_async_context(StageSender(plan)))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def read_credits(self) -> None:
        """Take credits as they come, and watch that all are there.

        Returns only without links, raises when a stream ends.
        """
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.read_credits())
                tasks.create_task(link.watch())

    async def send(self, header: stage_pb2.StepHeader, parts: Sequence[Tensor | None]) -> SentStep:
        """Send one step, each link its part, as soon as there are credits; sums over the links."""
        async with asyncio.TaskGroup() as tasks:
            sending = [
                tasks.create_task(link.send(header, part))
                for link, part in zip(self._links, parts, strict=True)
            ]
        sent = [task.result() for task in sending]
        return SentStep(
            ended_at=max(each.ended_at for each in sent),
            num_frames=sum(each.num_frames for each in sent),
            num_bytes=sum(each.num_bytes for each in sent),
        )
