"""What one worker holds, and the changes of it: nothing, a part of a model, a running epoch.

One assignment and at most one epoch at a time; a new one replaces the old one cleanly. Changes
come one after the other. It knows nothing of RPCs; `service.py` maps them onto these calls.
"""

import asyncio
import gc
from contextlib import suppress
from dataclasses import replace
from functools import partial

from protos import mesh_pb2, stage_pb2
from runtime.errors import (
    AssignmentError,
    DeviceStuckError,
    EpochEndedError,
    NotReadyError,
    StaleEpochError,
)
from runtime.protocol.result_codec import activity_to_proto
from runtime.rpc.tls import DialPolicy
from stage_worker.collectives.group import SINGLE_RANK, RankGroup
from stage_worker.device.device_info import peak_rss_bytes, rss_bytes
from stage_worker.device.device_thread import DeviceThread
from stage_worker.device.progress import ProgressFn
from stage_worker.epoch.epoch_plan import check_limits, make_epoch_plan, open_stage
from stage_worker.epoch.epoch_session import EpochSession
from stage_worker.epoch.step_timing import ActivityListener, ignore_activity
from stage_worker.loading.loading import (
    LoadedStage,
    WorkerDevice,
    compute_reference_logprobs,
    is_same_work,
    load_stage,
    resolve_assignment,
)
from stage_worker.transport.frame_codec import epoch_name
from stage_worker.transport.result_stream import ResultStream

# What a device that waits in a collective is given beyond the collective's own timeout.
_STUCK_SECONDS = 5.0
# For giving a group back while the process ends; what is stuck ends with the process.
_CLOSE_SECONDS = 1.0
_ON_LOOPBACK = DialPolicy()


class Worker:
    """The worker's state; used from the event loop, while the device's thread does the work."""

    def __init__(
        self,
        worker_id: str,
        device: WorkerDevice,
        thread: DeviceThread,
        tasks: asyncio.TaskGroup,
        dial_policy: DialPolicy = _ON_LOOPBACK,
        count: ActivityListener = ignore_activity,
    ) -> None:
        """Links go as far as `dial_policy`; `count` is told what steps take, as they take it."""
        self.worker_id = worker_id
        self._count = count
        self._dial_policy = dial_policy
        self._device = device
        self._thread = thread
        self._tasks = tasks
        self._changing = asyncio.Lock()
        self._is_loading = False
        self._loaded: LoadedStage | None = None
        self._session: EpochSession | None = None
        self._session_task: asyncio.Task[None] | None = None
        self._group: RankGroup = SINGLE_RANK
        self._watch: asyncio.Task[None] | None = None
        # Outlives its session, so that a reader that comes late still learns why it failed.
        self._results: ResultStream | None = None

    async def load(
        self, assignment: stage_pb2.Assignment, progress: ProgressFn
    ) -> stage_pb2.LoadReport:
        """End the epoch, drop the weights, and load this part instead.

        A part that is refused for its numbers or its files costs the epoch and the weights nothing;
        one that is held for another replica is kept.
        """
        async with self._change():
            self._is_loading = True
            try:
                self._loaded = await self._load(assignment, progress)
            finally:
                self._is_loading = False
        return stage_pb2.LoadReport(
            num_kv_blocks=self._loaded.num_kv_blocks,
            weights_bytes=self._loaded.stage.weights_bytes,
            peak_rss_bytes=peak_rss_bytes(),
            load_seconds=self._loaded.load_seconds,
            weights_fingerprint=self._loaded.fingerprint,
        )

    async def _load(self, assignment: stage_pb2.Assignment, progress: ProgressFn) -> LoadedStage:
        if self._loaded is not None and is_same_work(self._loaded.assignment, assignment):
            await self._end_session()
            return replace(self._loaded, assignment=assignment, load_seconds=0.0)
        found = await asyncio.to_thread(resolve_assignment, assignment, self._device, progress)
        await self._drop()
        return await self._thread.run(partial(load_stage, found, self._device, progress))

    def held(self) -> stage_pb2.Assignment | None:
        """The part whose weights are loaded, if any."""
        return None if self._loaded is None or self._is_loading else self._loaded.assignment

    async def reference_logprobs(
        self, request: stage_pb2.RecordCanaryRequest, progress: ProgressFn
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Token ids and log-probabilities, most likely first, of the model in one piece."""
        return await self._thread.run(
            partial(compute_reference_logprobs, request, self._device, progress)
        )

    async def open_epoch(self, request: stage_pb2.OpenEpochRequest) -> None:
        """End the running epoch and start another, with the next stage connected."""
        async with self._change():
            loaded = self._check_epoch(request)
            await self._end_session()
            self._group = await self._thread.run(partial(open_stage, request, loaded))
            plan = make_epoch_plan(request, loaded, self._dial_policy)
            session = EpochSession(plan, loaded.stage, self._thread, self._group, self._count)
            self._results = session.results
            self._session = session
            self._session_task = self._tasks.create_task(session.run())
            if self._group.size > 1:
                patience = request.collective_timeout_seconds + _STUCK_SECONDS
                self._watch = self._tasks.create_task(self._watch_device(session, patience))
            await session.wait_open()

    def session(self) -> EpochSession:
        """The running epoch; raises EpochEndedError when there is none."""
        if self._session is None or self._session.is_over:
            raise EpochEndedError(cause="no_epoch", detail="this worker has no open epoch")
        return self._session

    def results(self, epoch: stage_pb2.EpochId) -> ResultStream:
        """The results of `epoch`, which is the running or the latest one."""
        if self._results is None or self._results.epoch != epoch:
            raise StaleEpochError(expected=self._latest_epoch(), actual=epoch_name(epoch))
        return self._results

    async def unload(self) -> None:
        """End the epoch and drop the weights."""
        async with self._change():
            await self._drop()

    async def close(self) -> None:
        """End the epoch; the process is about to end."""
        if self._watch is not None:
            self._watch.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._end_session()

    def activity(self) -> mesh_pb2.RankActivity:
        """What this rank did in its latest epoch."""
        if self._session is None:
            return mesh_pb2.RankActivity()
        return activity_to_proto(self._session.activity, self._session.epoch)

    def status(self) -> stage_pb2.StatusResponse:
        """What this worker holds and does now."""
        response = stage_pb2.StatusResponse(
            worker_id=self.worker_id,
            state=self._state(),
            rss_bytes=rss_bytes(),
            peak_rss_bytes=peak_rss_bytes(),
        )
        if self._loaded is not None:
            stage = self._loaded.stage
            response.assignment.CopyFrom(self._loaded.assignment)
            response.weights_bytes = stage.weights_bytes
            response.num_kv_blocks = self._loaded.num_kv_blocks
            # What an ended epoch held is nobody's; it is cleared when the next one opens.
            if self._session is not None and not self._session.is_over:
                response.num_kv_blocks_used = stage.num_blocks_used
                response.num_slots_used = stage.num_slots_used
        if self._session is not None:
            response.epoch.CopyFrom(self._session.epoch)
            response.num_steps = self._session.num_steps
        return response

    def _state(self) -> stage_pb2.WorkerState:
        if self._is_loading:
            return stage_pb2.WORKER_STATE_LOADING
        if self._loaded is None:
            return stage_pb2.WORKER_STATE_EMPTY
        if self._session is None or self._session.is_over:
            return stage_pb2.WORKER_STATE_LOADED
        return stage_pb2.WORKER_STATE_SERVING

    def _change(self) -> asyncio.Lock:
        """Hold it to change what the worker holds; not to be waited for during a long load."""
        if self._is_loading:
            raise NotReadyError(phase="loading")
        return self._changing

    async def _drop(self) -> None:
        await self._end_session()
        self._session = None
        self._loaded = None
        await self._thread.run(gc.collect)

    async def _end_session(self) -> None:
        if self._session_task is not None:
            self._session_task.cancel()
            await asyncio.wait((self._session_task,))
            self._session_task = None
        group, self._group = self._group, SINGLE_RANK
        if group.size > 1:
            await self._thread.run(group.close)

    async def _watch_device(self, session: EpochSession, patience_seconds: float) -> None:
        """Ends the process, by an error, if the device stays in an epoch that is over."""
        await session.over()
        try:
            async with asyncio.timeout(patience_seconds):
                await self._thread.run(lambda: None)
        except TimeoutError:
            raise DeviceStuckError(seconds=patience_seconds) from None

    def _latest_epoch(self) -> str:
        return "none" if self._results is None else epoch_name(self._results.epoch)

    def _check_epoch(self, request: stage_pb2.OpenEpochRequest) -> LoadedStage:
        """Refuse what does not fit the loaded part, or is older than the latest epoch."""
        if self._loaded is None:
            raise NotReadyError(phase="nothing is loaded")
        assignment = self._loaded.assignment
        expected = (assignment.replica, assignment.stage, assignment.rank)
        actual = (request.replica, request.stage, request.rank)
        if expected != actual:
            place = "replica {}, stage {}, rank {}"
            raise AssignmentError(expected=place.format(*expected), actual=place.format(*actual))
        latest = None if self._results is None else self._results.epoch
        if (
            latest is not None
            and request.epoch.coordinator_id == latest.coordinator_id
            and request.epoch.counter <= latest.counter
        ):
            raise StaleEpochError(
                expected=f"later than {epoch_name(latest)}", actual=epoch_name(request.epoch)
            )
        check_limits(request, self._loaded, self._dial_policy)
        return self._loaded
