"""Wires the parts of one coordinator, loads the model and runs the replicas.

It has no listeners; `server.py` adds the APIs.
"""

import asyncio
import time
import uuid
from typing import Final, Never

from prometheus_client import CollectorRegistry

from coordinator.admission.admission import Admission
from coordinator.engine.engine import Engine
from coordinator.engine.request_router import RequestRouter
from coordinator.membership.membership import Membership
from coordinator.options import CoordinatorOptions
from coordinator.output.output_processor import OutputProcessor
from coordinator.planning.replica_layout import plan_replica
from coordinator.replica.replica import Replica
from coordinator.replica.shared_context import SharedReplicaContext
from coordinator.security.api_keys import ApiKeys, Tenant
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from coordinator.tokenization.model_info import ServedModel, load_served_model
from runtime.errors import NotReadyError, ShuttingDownError, StagemeshError
from runtime.host.logs import get_logger
from runtime.metrics.declarations import CoordinatorMetrics
from scheduler import make_policy

# How often blame that has passed is looked for.
_DECAY_SECONDS: Final = 10.0

_log = get_logger()


class Coordinator:
    """All parts of a coordinator process except its listeners."""

    def __init__(self, options: CoordinatorOptions) -> None:
        self.options = options
        self.coordinator_id = uuid.uuid4().hex
        self.metrics = CoordinatorMetrics(CollectorRegistry(), options.tpot_seconds)
        self.membership = Membership(options.max_workers)
        self.model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        # The address at which workers join; the server sets the bound one.
        self.mesh_address = options.mesh
        self.replicas: tuple[Replica, ...] = ()
        self.changed = asyncio.Event()
        self.outputs = OutputProcessor(self.metrics)
        engines = [self._make_engine(replica) for replica in range(options.dp)]
        self.router = RequestRouter(engines, options.max_waiting)
        self.admission = Admission(
            self.model,
            self.router,
            self.outputs,
            options.max_model_len,
            options.max_waiting,
            self.metrics,
        )
        limits = Tenant("", options.key_max_in_flight, options.key_tokens_per_minute)
        self.keys = ApiKeys(options.api_keys, limits)
        self._expose_load()
        self.started_at = int(time.time())
        self._started = time.monotonic()
        self._is_stopping = False
        self._failure = ""
        self._loading = "starting"

    @property
    def is_ready(self) -> bool:
        """Whether a replica serves and new requests are accepted."""
        return any(each.is_serving for each in self.replicas) and not self._is_stopping

    @property
    def failure(self) -> str:
        """The cause if no request can ever be served; else empty."""
        return self._failure or next((each.failure for each in self.replicas if each.failure), "")

    @property
    def phase(self) -> str:
        """The phase of the coordinator or of its replicas, for display."""
        if self._failure:
            return "failed"
        if self._is_stopping:
            return "stopping"
        phases = [replica.describe() for replica in self.replicas] or [self._loading]
        if len(set(phases)) == 1:
            return phases[0]
        return "; ".join(f"replica {number} {phase}" for number, phase in enumerate(phases))

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    async def run(self) -> None:
        """Loads the model's description, then keeps its replicas; returns when none can serve."""
        options = self.options
        try:
            model = await load_served_model(options.model, self._note_loading)
            plans = [
                plan_replica(options, model.config, model.fingerprint, replica)
                for replica in range(options.dp)
            ]
        except StagemeshError as error:
            self._give_up(error)
            return
        if self.model.done():  # the coordinator stops, and waiting requests were refused
            return
        self.model.set_result(model)
        shared = SharedReplicaContext(
            self.coordinator_id,
            model,
            options,
            self.membership,
            self.changed,
            options.dtype,
            settled_at=asyncio.get_running_loop().time() + options.settle_seconds,
        )
        self.replicas = tuple(
            Replica(
                shared,
                plan,
                engine,
                ReplicaTelemetry(engine.replica, options.tp_sizes, self.metrics),
            )
            for engine, plan in zip(self.router.engines, plans, strict=True)
        )
        await self._run_replicas(shared)

    async def _run_replicas(self, shared: SharedReplicaContext) -> None:
        """Returns when one is beyond repair, which it can be only while none has served."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(replica.run()) for replica in self.replicas]
            decaying = tasks.create_task(_decay_fault_scores(shared))
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            error = NotReadyError(phase=f"failed: {self.failure}")
            self.router.refuse(error)
            self.router.fail_all(error)
            for task in (*running, decaying):
                task.cancel()

    async def drain(self) -> None:
        """Accepts no more requests; fails those that are unfinished after the grace time."""
        error = ShuttingDownError()
        was_ready, self._is_stopping = self.is_ready, True
        self.router.refuse(error)
        self._refuse_model(error)
        if was_ready:
            try:
                async with asyncio.timeout(self.options.grace_seconds):
                    await self.router.drained()
            except TimeoutError:
                _log.warning("requests_cut_off", num_requests=self.router.stats().num_requests)
        self.router.fail_all(error)

    def _make_engine(self, replica: int) -> Engine:
        options = self.options
        policy = make_policy(options.policy, options.policy_options)
        return Engine(
            replica,
            policy,
            options.step_seconds,
            self.metrics,
            self.outputs.process,
            stall_seconds=options.stall_seconds,
        )

    def _expose_load(self) -> None:
        """Registers gauges that are computed when the metrics are read."""
        metrics, router, membership = self.metrics, self.router, self.membership
        metrics.requests_running.set_function(lambda: router.stats().num_running)
        metrics.requests_waiting.set_function(lambda: router.stats().num_waiting)
        for engine in router.engines:
            _expose_engine(metrics, engine)
        metrics.workers.labels("spare").set_function(lambda: len(membership.free))
        metrics.workers.labels("used").set_function(
            lambda: len(membership.workers) - len(membership.free)
        )

    def _give_up(self, error: StagemeshError) -> None:
        self._failure = str(error)
        _log.error("model_failed", model=self.options.model, cause=self._failure)
        refusal = NotReadyError(phase=f"failed: {self._failure}")
        self.router.refuse(refusal)
        self._refuse_model(refusal)
        self.changed.set()

    def _refuse_model(self, error: StagemeshError) -> None:
        if self.model.done():
            return
        self.model.set_exception(error)
        self.model.exception()  # marks it as retrieved: there may be no request that waits for it

    def _note_loading(self, phase: str, done: int, total: int) -> None:
        self._loading = f"{phase}: {100 * done // total}%" if total else phase


async def _decay_fault_scores(shared: SharedReplicaContext) -> Never:
    """Has blame pass with time; not before the first service, or a bad start would never end."""
    while True:
        await asyncio.sleep(_DECAY_SECONDS)
        if shared.has_served:
            shared.membership.decay_faults(asyncio.get_running_loop().time())


def _expose_engine(metrics: CoordinatorMetrics, engine: Engine) -> None:
    replica = str(engine.replica)
    metrics.steps_in_flight.labels(replica).set_function(lambda: engine.stats().num_steps_in_flight)
    metrics.kv_blocks.labels(replica, "used").set_function(lambda: engine.stats().num_blocks_used)
    metrics.kv_blocks.labels(replica, "free").set_function(lambda: _num_blocks_free(engine))
    metrics.kv_utilization.labels(replica).set_function(lambda: _kv_utilization(engine))
    metrics.replica_serving.labels(replica).set_function(lambda: engine.is_serving)
    # Exported from the start, so that their rates are defined.
    metrics.replica_requests.labels(replica)
    metrics.handovers.labels(replica)


def _num_blocks_free(engine: Engine) -> int:
    stats = engine.stats()
    return stats.num_blocks - stats.num_blocks_used


def _kv_utilization(engine: Engine) -> float:
    stats = engine.stats()
    return stats.num_blocks_used / max(1, stats.num_blocks)
