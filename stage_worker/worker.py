"""The state of one worker: its assignment, loaded weights and epoch, and their changes.

There is at most one assignment and one epoch; a new one replaces the old one. Changes are
serialized. `service.py` maps RPCs onto these calls.
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

# Allowed beyond the collective timeout before the device counts as stuck.
_STUCK_SECONDS = 5.0
# For closing the group when the process ends.
_CLOSE_SECONDS = 1.0
_ON_LOOPBACK = DialPolicy()


class Worker:
    """The worker's state; called from the event loop, computes on the device's thread."""

    def __init__(
        self,
        worker_id: str,
        device: WorkerDevice,
        thread: DeviceThread,
        tasks: asyncio.TaskGroup,
        dial_policy: DialPolicy = _ON_LOOPBACK,
        on_activity: ActivityListener = ignore_activity,
    ) -> None:
        """`dial_policy` limits the links to other stages; `on_activity` gets each step's times."""
        self.worker_id = worker_id
        self._on_activity = on_activity
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
        self._device_watch: asyncio.Task[None] | None = None
        # Outlives its session, so that a late reader still gets the failure.
        self._results: ResultStream | None = None

    async def load(
        self, assignment: stage_pb2.Assignment, progress: ProgressFn
    ) -> stage_pb2.LoadReport:
        """Ends the epoch, frees the weights and loads `assignment`.

        An assignment that is refused for its numbers or files leaves the epoch and the weights as
        they are. Weights that are already loaded for another replica are kept.
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
        """The assignment whose weights are loaded, if any."""
        return None if self._loaded is None or self._is_loading else self._loaded.assignment

    async def reference_logprobs(
        self, request: stage_pb2.RecordCanaryRequest, progress: ProgressFn
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The unsplit model's most likely next tokens and their log-probabilities, in order."""
        return await self._thread.run(
            partial(compute_reference_logprobs, request, self._device, progress)
        )

    async def open_epoch(self, request: stage_pb2.OpenEpochRequest) -> None:
        """Replaces the epoch; returns once the next stage is connected."""
        async with self._change():
            loaded = self._check_epoch(request)
            await self._end_session()
            self._group = await self._thread.run(partial(open_stage, request, loaded))
            plan = make_epoch_plan(request, loaded, self._dial_policy)
            session = EpochSession(plan, loaded.stage, self._thread, self._group, self._on_activity)
            self._session, self._results = session, session.results
            self._session_task = self._tasks.create_task(session.run())
            if self._group.size > 1:
                stuck_seconds = request.collective_timeout_seconds + _STUCK_SECONDS
                self._device_watch = self._tasks.create_task(
                    self._watch_device(session, stuck_seconds)
                )
            await session.wait_open()

    def session(self) -> EpochSession:
        """The running epoch; raises EpochEndedError if there is none."""
        if self._session is None or self._session.has_ended:
            raise EpochEndedError(cause="no_epoch", detail="this worker has no open epoch")
        return self._session

    def results(self, epoch: stage_pb2.EpochId) -> ResultStream:
        """The results of `epoch`; raises StaleEpochError unless it is the latest one."""
        if self._results is None or self._results.epoch != epoch:
            latest = "none" if self._results is None else epoch_name(self._results.epoch)
            raise StaleEpochError(expected=latest, actual=epoch_name(epoch))
        return self._results

    async def unload(self) -> None:
        """Ends the epoch and frees the weights."""
        async with self._change():
            await self._drop()

    async def close(self) -> None:
        """Ends the epoch when the process ends."""
        if self._device_watch is not None:
            self._device_watch.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._end_session()

    def activity(self) -> mesh_pb2.RankActivity:
        """This rank's activity in its latest epoch."""
        if self._session is None:
            return mesh_pb2.RankActivity()
        return activity_to_proto(self._session.activity, self._session.epoch)

    def status(self) -> stage_pb2.StatusResponse:
        """The worker's current state."""
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
            # Slots and blocks of an ended epoch are unused; the next epoch clears them.
            if self._session is not None and not self._session.has_ended:
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
        if self._session is None or self._session.has_ended:
            return stage_pb2.WORKER_STATE_LOADED
        return stage_pb2.WORKER_STATE_SERVING

    def _change(self) -> asyncio.Lock:
        """The lock for changes; raises NotReadyError during a load, which may take long."""
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

    async def _watch_device(self, session: EpochSession, stuck_seconds: float) -> None:
        """Raises DeviceStuckError if the device still computes long after the epoch ended."""
        await session.wait_ended()
        try:
            async with asyncio.timeout(stuck_seconds):
                await self._thread.run(lambda: None)
        except TimeoutError:
            raise DeviceStuckError(seconds=stuck_seconds) from None

    def _check_epoch(self, request: stage_pb2.OpenEpochRequest) -> LoadedStage:
        """Refuses a request that does not fit the loaded stage or is not newer than the latest."""
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
