"""Buffers the results of one epoch until the coordinator reads them.

The `Results` stream may attach after the first step, or after the epoch has failed. The buffer is
bounded: a coordinator that does not read stops the stage.
"""

import asyncio
from collections.abc import AsyncGenerator

from protos import stage_pb2
from runtime.errors import EpochEndedError, InvalidRequestError, StagemeshError
from runtime.protocol.result_codec import result_to_protos
from runtime.protocol.step import StepResult

_NUM_BUFFERED = 256


class ResultStream:
    """Written by the epoch's session and read by one `Results` stream."""

    def __init__(self, epoch: stage_pb2.EpochId) -> None:
        self.epoch = epoch
        self.reader_gone = asyncio.Event()
        self._room = asyncio.Semaphore(_NUM_BUFFERED)
        # One more place than results, for None, which marks the end.
        self._unread: asyncio.Queue[StepResult | None] = asyncio.Queue(_NUM_BUFFERED + 1)
        self._failure: stage_pb2.StageFailure | None = None
        self._is_read = False

    async def put(self, result: StepResult) -> None:
        """Publishes one step's result; waits while the buffer is full."""
        await self._room.acquire()
        self._unread.put_nowait(result)

    def close(self, failure: StagemeshError | None, step: int) -> None:
        """Ends the stream, with `failure` if there is one; buffered results stay readable."""
        if failure is not None:
            end = EpochEndedError.caused_by(failure)
            self._failure = stage_pb2.StageFailure(code=end.cause, message=end.detail, step=step)
        self._unread.put_nowait(None)

    async def messages(self) -> AsyncGenerator[stage_pb2.StepResult, None]:
        """Yields the results until the epoch ends; sets `reader_gone` when the reader leaves."""
        if self._is_read:
            raise InvalidRequestError(field="epoch", problem="has a Results stream already")
        self._is_read = True
        try:
            while (result := await self._unread.get()) is not None:
                self._room.release()
                for message in result_to_protos(result):
                    yield message
            if self._failure is not None:
                yield stage_pb2.StepResult(step=self._failure.step, failure=self._failure)
        finally:
            self.reader_gone.set()
