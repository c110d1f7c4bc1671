"""Runs one replica: allocates workers, loads weights, opens an epoch, serves, and starts over.

It decides when an epoch begins and ends. The engine runs requests in it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial
from typing import Final, Never

from coordinator.engine.engine import Engine
from coordinator.membership.assignment import Assignment, CanaryReference
from coordinator.membership.worker_record import WorkerRecord
from coordinator.planning.worker_assignment import links_of
from coordinator.replica import bring_up
from coordinator.replica.canary import find_reference, run_canary
from coordinator.replica.epoch_supervisor import EpochSupervisor, is_planned
from coordinator.replica.fault_attribution import attribute
from coordinator.replica.plan_selection import ReplicaPlan
from coordinator.replica.retry_policy import FormationRetryPolicy
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.stage_client.epoch_streams import open_streams
from coordinator.stage_client.failures import run_to_failure
from coordinator.stage_client.stage_client import StageClient
from coordinator.stage_client.stage_codec import EpochId
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import StagemeshError
from runtime.host.logs import get_logger
from runtime.version import BUILD
from scheduler import SchedulerLimits

_log = get_logger()


class Phase(Enum):
    """The state of a replica; the value is displayed to people."""

    WAITING = "waiting for workers"
    LOADING = "loading weights"
    OPENING = "opening the epoch"
    CANARY = "checking the canary prompt"
    SERVING = "serving"
    ENDED = "the epoch ended"
    FAILED = "failed"


_NEXT_PHASES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.LOADING}),
    Phase.LOADING: frozenset({Phase.OPENING, Phase.ENDED, Phase.FAILED}),
    Phase.OPENING: frozenset({Phase.CANARY, Phase.ENDED, Phase.FAILED}),
    Phase.CANARY: frozenset({Phase.SERVING, Phase.ENDED, Phase.FAILED}),
    Phase.SERVING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset({Phase.WAITING}),
    Phase.FAILED: frozenset(),
}


class Replica:
    """One pipeline over as many workers as its plan has assignments."""

    def __init__(
        self,
        shared: SharedReplicaContext,
        requested: tuple[Assignment, ...],
        engine: Engine,
        telemetry: ReplicaTelemetry,
    ) -> None:
        """`requested` is in the order of stages, and of ranks within a stage."""
        self.number = engine.replica
        self.engine = engine
        self.telemetry = telemetry
        self.phase = Phase.WAITING
        self.failure = ""
        self.last_cause = ""
        self.epoch = EpochId(shared.coordinator_id, 0)
        self.workers: tuple[WorkerRecord, ...] = ()
        self._shared = shared
        self._membership = shared.membership
        self._plan = ReplicaPlan(shared, self.number, requested, telemetry)
        self._supervisor: EpochSupervisor | None = None
        self._canary_progress = ""
        self._retry_policy = FormationRetryPolicy(
            shared.options.backoff_seconds, shared.options.max_backoff_seconds
        )
        self._log = _log.bind(replica=self.number)

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The current plan, degraded or as requested; `workers` are in the same order."""
        return self._plan.assignments

    @property
    def is_serving(self) -> bool:
        """Whether an epoch whose canary was right runs requests."""
        return self.phase is Phase.SERVING

    def describe(self) -> str:
        """A text with the phase, its details and the cause of the last end."""
        text = self.phase.value
        if self.is_serving:
            if not self._plan.is_degraded:
                return text
            text += f" with {self._plan.options.pp} of {self._shared.options.pp} stages"
        if self.phase is Phase.WAITING:
            text += f": {self._plan.shortage}"
        if self.phase is Phase.LOADING:
            text += self._canary_progress
        return f"{text} (after: {self.last_cause})" if self.last_cause else text

    async def run(self) -> None:
        """Runs one epoch after another; returns once the replica has failed for good."""
        while True:
            self.workers = await self._plan.allocate_workers()
            self._enter(Phase.LOADING)
            cause = await run_to_failure(self._run_epoch(self.workers))
            self.last_cause = str(cause)
            if self.is_serving:
                self.telemetry.stop_serving(self.engine.clock(), self.epoch.counter, cause)
            over_limit = [] if is_planned(cause) else self._record_failure(cause)
            if await self._plan.should_give_up(self._retry_policy, cause, self.workers):
                self.failure = str(cause)
                self._enter(Phase.FAILED)
                self._log.error("replica_failed", cause=self.failure)
                return
            self._end_epoch(cause, over_limit)
            if not is_planned(cause):
                await asyncio.sleep(self._retry_policy.pause_seconds)
            self._enter(Phase.WAITING)

    def _record_failure(self, cause: StagemeshError) -> list[WorkerRecord]:
        """Counts an unplanned end; returns the workers that are over the fault limit."""
        was_serving = self.is_serving
        self._retry_policy.record_failure(cause, has_just_served=was_serving)
        now = asyncio.get_running_loop().time()
        scores = self._membership.fault_scores
        return attribute(cause, self.workers, scores, now, was_serving=was_serving)

    def _end_epoch(self, cause: StagemeshError, over_limit: Sequence[WorkerRecord]) -> None:
        """Returns requests to the queue, evicts workers `over_limit` and frees the others."""
        if over_limit:
            self.last_cause += f"; evicted: {', '.join(worker.name for worker in over_limit)}"
        self._enter(Phase.ENDED)
        log = self._log.info if is_planned(cause) else self._log.warning
        log("epoch_ended", epoch=self.epoch.counter, cause=self.last_cause)
        if self.engine.end_epoch(cause, is_planned=is_planned(cause)):
            self._membership.fault_scores.reset_failures(self._membership.workers)
        for worker in over_limit:
            # A worker that is alive joins again, with its fault score.
            self._membership.leave(worker, self.last_cause)
        spares = self._supervisor.spares if self._supervisor else ()
        self._membership.release((*self.workers, *spares))
        self.workers, self._supervisor = (), None

    async def _run_epoch(self, workers: tuple[WorkerRecord, ...]) -> None:
        """Never returns: one attempt from loading to serving, which ends with the first error."""
        options = self._plan.options
        bring_up.check_devices(options.backend, self.assignments, workers)
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            for worker in workers:
                tasks.create_task(worker.watch())
            tasks.create_task(self._supervise())
            connections = [StageClient.connect(worker, options) for worker in workers]
            clients = [await stack.enter_async_context(each) for each in connections]
            limits, reference = await self._load(clients)
            stages = bring_up.group_by_stage(clients, self.assignments)
            await self._serve(stages, limits, reference)

    async def _supervise(self) -> Never:
        plan, workers = self._plan, self.workers
        self._supervisor = EpochSupervisor(
            plan.assignments, plan.requested, workers, self.engine, self._membership, plan.options
        )
        await self._supervisor.run()

    async def _load(
        self, clients: Sequence[StageClient]
    ) -> tuple[SchedulerLimits, CanaryReference]:
        """Loads the weights, and finds the unsplit model's response to the canary prompt."""
        self._canary_progress = ""
        reports = await bring_up.load_parts(clients, self.assignments, self.telemetry)
        self._plan.weights_bytes = sum(report.weights_bytes for report in reports)
        kinds = [worker.identity.device_kind for worker in self.workers]
        limits = bring_up.make_limits(self._plan.options, self.assignments, reports, kinds)
        async with self._shared.recording:
            reference = await find_reference(
                clients[0],
                self.assignments[0],
                self._shared.model.config.vocab_size,
                limits.max_model_len,
                self._note_canary,
            )
        return limits, reference

    def _note_canary(self, done_layers: int, num_layers: int) -> None:
        self._canary_progress = f", canary prompt at layer {done_layers} of {num_layers}"

    async def _serve(
        self, stages: bring_up.Stages, limits: SchedulerLimits, reference: CanaryReference
    ) -> None:
        """Never returns: runs the canary and then requests in a new epoch on loaded workers."""
        options, engine = self._plan.options, self.engine
        self._enter(Phase.OPENING)
        self.epoch = self._shared.new_epoch()
        self.telemetry.start_epoch()
        plan = await bring_up.open_epoch(stages, self.epoch, self.number, options, limits)
        vocab_size = self._shared.model.config.vocab_size
        async with open_streams(
            plan, stages, options.call_seconds, engine.wake, self.telemetry.record, vocab_size
        ) as streams:
            self._enter(Phase.CANARY)
            make_loop = partial(engine.make_loop, streams)
            await run_canary(make_loop, limits, reference, self.assignments[0].dtype)
            self._enter(Phase.SERVING)
            self._shared.has_served = True
            links = links_of(self.assignments, self.workers)
            self._membership.fault_scores.clear(self.workers, links)
            self._report_start(limits)
            credits = self.telemetry.metrics.free_credits.labels(str(self.number))
            credits.set_function(lambda: streams.num_credits)
            await engine.serve(streams, limits)

    def _enter(self, phase: Phase) -> None:
        assert phase in _NEXT_PHASES[self.phase], f"{self.phase} cannot become {phase}"
        self.phase = phase
        if self.is_serving:
            self.telemetry.start_serving(self.engine.clock())
        self._log.info("replica_phase", phase=phase.name.lower())
        self._shared.changed.set()

    def _report_start(self, limits: SchedulerLimits) -> None:
        layers = [part.num_layers for part in self.assignments if part.rank == 0]
        self.telemetry.export_stages(layers)
        self.telemetry.export_cache_config(limits)
        num_kv_tokens = limits.num_blocks * limits.block_size
        self._log.info(
            "replica_serving",
            build=BUILD,
            epoch=self.epoch.counter,
            model=self._shared.model.name,
            layers=layers,
            tp=list(self._plan.options.tp_sizes),
            workers=[worker.name for worker in self.workers],
            max_model_len=limits.max_model_len,
            num_kv_tokens=num_kv_tokens,
            # The number of sequences of the maximum length that run at the same time.
            max_concurrency=min(limits.max_sequences, num_kv_tokens // limits.max_model_len),
        )
