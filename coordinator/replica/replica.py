"""Owns the life of one replica: workers, weights, epoch, canary, serving; and over again.

It decides when an epoch begins and that it is over. What runs in it is the engine's, what the
workers are asked is `stages.py`'s.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Never

from coordinator.engine.engine import Engine
from coordinator.membership.assignment import Assignment
from coordinator.membership.worker_record import WorkerRecord
from coordinator.planning.worker_assignment import links_of
from coordinator.replica.bring_up import (
    Ranks,
    check_devices,
    group_by_stage,
    load_parts,
    make_limits,
    open_epoch,
)
from coordinator.replica.canary import CanaryReference
from coordinator.replica.canary_check import check_route, find_reference
from coordinator.replica.epoch_supervisor import EpochSupervisor, is_planned
from coordinator.replica.fault_attribution import attribute
from coordinator.replica.phases import NEXT_PHASES, Phase
from coordinator.replica.plan_selection import ReplicaPlan
from coordinator.replica.retry_policy import FormationRetryPolicy
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.stage_client.epoch_streams import open_streams
from coordinator.stage_client.root_cause import run_to_failure
from coordinator.stage_client.stage_client import EpochId, EpochPlan, StageClient
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import StagemeshError
from runtime.host.logs import get_logger
from runtime.version import BUILD
from scheduler import SchedulerLimits

_log = get_logger()


class Replica:
    """One pipeline over as many workers as its plan has assignments."""

    def __init__(
        self,
        shared: SharedReplicaContext,
        assignments: tuple[Assignment, ...],
        engine: Engine,
        telemetry: ReplicaTelemetry,
    ) -> None:
        """`assignments` are in the order of stages, and of ranks within a stage.

        They are what was asked for; while workers are missing, others may be carried out.
        """
        self.number = engine.replica
        self.engine = engine
        self.telemetry = telemetry
        self.phase = Phase.WAITING
        self.failure = ""
        self.last_cause = ""
        self.epoch = EpochId(shared.coordinator_id, 0)
        self.workers: tuple[WorkerRecord, ...] = ()
        self._shared = shared
        self._plan = ReplicaPlan(shared, self.number, assignments, telemetry)
        self._supervisor: EpochSupervisor | None = None
        self._canary_progress = ""
        options = shared.options
        self._retry_policy = FormationRetryPolicy(
            options.backoff_seconds, options.max_backoff_seconds
        )
        self._membership = shared.membership
        self._log = _log.bind(replica=self.number)

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The plan that is carried out, in the order of stages, and of ranks within a stage."""
        return self._plan.assignments

    @property
    def is_serving(self) -> bool:
        """An epoch runs whose canary was right."""
        return self.phase is Phase.SERVING

    def describe(self) -> str:
        """What it is doing or waiting for, for people."""
        text = self.phase.value
        if self.is_serving:
            if self._plan.is_whole:
                return text
            text += f" with {self._plan.options.pp} of {self._shared.options.pp} stages"
        if self.phase is Phase.WAITING:
            text += f": {self._plan.missing}"
        if self.phase is Phase.LOADING:
            text += self._canary_progress
        return f"{text} (after: {self.last_cause})" if self.last_cause else text

    async def run(self) -> None:
        """Forms the replica, again after each end; returns only once it is beyond repair."""
        while True:
            self.workers = await self._plan.take_workers()
            self._enter(Phase.LOADING)
            cause = await run_to_failure(self._run_epoch(self.workers))
            self.last_cause = str(cause)
            if self.is_serving:
                self.telemetry.stop_serving(self.engine.clock(), self.epoch.counter, cause)
            is_on_purpose = is_planned(cause)
            over_limit: list[WorkerRecord] = []
            if not is_on_purpose:
                self._retry_policy.count(cause, has_just_served=self.is_serving)
                now = asyncio.get_running_loop().time()
                over_limit = attribute(
                    cause, self.workers, self._membership, now, was_serving=self.is_serving
                )
            if await self._plan.should_give_up(self._retry_policy, cause, self.workers):
                self.failure = str(cause)
                self._enter(Phase.FAILED)
                self._log.error("replica_failed", cause=self.failure)
                return
            self._end_epoch(cause, over_limit, is_on_purpose=is_on_purpose)
            if not is_on_purpose:
                await asyncio.sleep(self._retry_policy.pause_seconds)
            self._enter(Phase.WAITING)

    def _end_epoch(
        self, cause: StagemeshError, over_limit: Sequence[WorkerRecord], *, is_on_purpose: bool
    ) -> None:
        """Requests wait again, workers stand by again, but for those that spoiled it."""
        if over_limit:
            self.last_cause += f"; evicted: {', '.join(worker.name for worker in over_limit)}"
        self._enter(Phase.ENDED)
        log = self._log.info if is_on_purpose else self._log.warning
        log("epoch_ended", epoch=self.epoch.counter, cause=self.last_cause)
        if self.engine.end_epoch(cause, is_planned=is_on_purpose):
            self._membership.fault_scores.reset_failures(self._membership.workers)
        for worker in over_limit:
            # Whoever is alive joins anew, behind those that have not been tried.
            self._membership.leave(worker, self.last_cause)
        spares = self._supervisor.spares if self._supervisor else ()
        self._membership.release((*self.workers, *spares))
        self.workers, self._supervisor = (), None

    async def _run_epoch(self, workers: tuple[WorkerRecord, ...]) -> None:
        """Never returns: one try from loading to serving, over when anything in it fails."""
        options = self._plan.options
        check_devices(options.backend, self.assignments, workers)
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            for worker in workers:
                tasks.create_task(worker.watch())
            tasks.create_task(self._supervise())
            clients = [
                await stack.enter_async_context(StageClient.connect(worker, options))
                for worker in workers
            ]
            limits, reference = await self._load(clients)
            await self._serve(group_by_stage(clients, self.assignments), limits, reference)

    async def _supervise(self) -> Never:
        plan, workers = self._plan, self.workers
        self._supervisor = EpochSupervisor(
            plan.assignments, plan.asked_for, workers, self.engine, self._membership, plan.options
        )
        await self._supervisor.run()

    async def _load(
        self, clients: Sequence[StageClient]
    ) -> tuple[SchedulerLimits, CanaryReference]:
        """Weights onto the workers, and what the whole model says to the canary prompt."""
        self._canary_progress = ""
        reports = await load_parts(clients, self.assignments, self.telemetry)
        self._plan.weights_bytes = sum(report.weights_bytes for report in reports)
        kinds = [worker.identity.device_kind for worker in self.workers]
        limits = make_limits(self._plan.options, self.assignments, reports, kinds)
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
        self, stages: tuple[Ranks, ...], limits: SchedulerLimits, reference: CanaryReference
    ) -> None:
        """Never returns: a new epoch on loaded workers, the canary first, then the requests."""
        options, engine = self._plan.options, self.engine
        self._enter(Phase.OPENING)
        self.epoch = self._shared.new_epoch()
        self.telemetry.start_epoch()
        plan = EpochPlan(
            epoch=self.epoch,
            replica=self.number,
            num_kv_blocks=limits.num_blocks,
            max_sequences=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            window=options.window,
            backend=options.backend,
            collective_timeout_seconds=options.collective_timeout_seconds,
            overlap=options.overlap,
        )
        await open_epoch(stages, plan)
        vocab_size = self._shared.model.config.vocab_size
        async with open_streams(
            plan, stages, options.call_seconds, engine.wake, self.telemetry.record, vocab_size
        ) as streams:
            self._enter(Phase.CANARY)
            make_loop = partial(engine.make_loop, streams)
            await check_route(make_loop, limits, reference, self.assignments[0].dtype)
            self._enter(Phase.SERVING)
            self._shared.has_served = True
            self._membership.fault_scores.clear(
                self.workers, links_of(self.assignments, self.workers)
            )
            self._show_start(limits)
            credits = self.telemetry.metrics.free_credits.labels(str(self.number))
            credits.set_function(lambda: streams.num_credits)
            await engine.serve(streams, limits)

    def _enter(self, phase: Phase) -> None:
        assert phase in NEXT_PHASES[self.phase], f"{self.phase} cannot become {phase}"
        self.phase = phase
        if self.is_serving:
            self.telemetry.start_serving(self.engine.clock())
        self._log.info("replica_phase", phase=phase.name.lower())
        self._shared.changed.set()

    def _show_start(self, limits: SchedulerLimits) -> None:
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
            tp=[part.tp_size for part in self.assignments if part.rank == 0],
            workers=[worker.name for worker in self.workers],
            max_model_len=limits.max_model_len,
            num_kv_tokens=num_kv_tokens,
            # How many sequences of the longest kind run at the same time.
            max_concurrency=min(limits.max_sequences, num_kv_tokens // limits.max_model_len),
        )
