"""Owns the parts of a coordinator and the way from a model's name to a replica that serves.

It listens to nothing: `server.py` puts the doors in front. Several replicas come behind the same
admission.
"""

import asyncio
import time
import uuid

from prometheus_client import CollectorRegistry

from coordinator.admission import Admission
from coordinator.api_keys import ApiKeys, Tenant
from coordinator.engine import Engine
from coordinator.membership import Member, Membership
from coordinator.options import CoordinatorOptions
from coordinator.plan import plan_replica
from coordinator.replica import Replica
from coordinator.served_model import ServedModel, load_served_model
from coordinator.telemetry import ReplicaTelemetry
from runtime.errors import NotReadyError, ShuttingDownError, StagemeshError
from runtime.logs import get_logger
from runtime.metrics import CoordinatorMetrics
from scheduler import make_policy

_log = get_logger()


class Coordinator:
    """Everything that a coordinator process holds besides its listeners."""

    def __init__(self, options: CoordinatorOptions) -> None:
        self.options = options
        self.coordinator_id = uuid.uuid4().hex
        self.metrics = CoordinatorMetrics(CollectorRegistry())
        self.membership = Membership(options.max_workers)
        self.model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self.replica: Replica | None = None
        # Where workers join; the server knows it once it listens.
        self.mesh_address = options.mesh
        self.changed = asyncio.Event()
        self.engine = Engine(
            make_policy(options.policy, options.policy_options),
            options.max_waiting,
            options.step_seconds,
            self.metrics,
        )
        self.admission = Admission(
            self.model, self.engine, options.max_model_len, options.max_waiting
        )
        limits = Tenant("", options.key_max_in_flight, options.key_tokens_per_minute)
        self.keys = ApiKeys(options.api_keys, limits, options.launcher_key_hash)
        self._expose_load()
        self.started_at = int(time.time())
        self._started = time.monotonic()
        self._is_stopping = False
        self._failure = ""
        self._loading = "starting"

    @property
    def is_ready(self) -> bool:
        """Requests are being served, and new ones are taken."""
        return self.replica is not None and self.replica.is_serving and not self._is_stopping

    @property
    def failure(self) -> str:
        """Why nothing will ever be served; empty while there is hope."""
        return self._failure or (self.replica.failure if self.replica else "")

    @property
    def phase(self) -> str:
        """What is going on, for people."""
        if self._failure:
            return "failed"
        if self._is_stopping:
            return "stopping"
        return self.replica.describe() if self.replica else self._loading

    @property
    def uptime_seconds(self) -> float:
        """Since this object was made."""
        return time.monotonic() - self._started

    async def run(self) -> None:
        """Loads the model's description, then keeps its replica; returns when beyond repair."""
        try:
            model = await load_served_model(self.options.model, self._note_loading)
            assignments = plan_replica(self.options, model.config, model.fingerprint, replica=0)
        except StagemeshError as error:
            self._give_up(error)
            return
        if self.model.done():  # the coordinator stops, and has said so to those who waited
            return
        self.model.set_result(model)
        telemetry = ReplicaTelemetry(0, self.options.tp_sizes, self.metrics)
        self.replica = Replica(
            0,
            self.coordinator_id,
            model,
            assignments,
            self.options,
            self.membership,
            self.engine,
            telemetry,
            self.changed,
        )
        await self.replica.run()

    async def drain(self) -> None:
        """Takes no more requests, and ends those that are left when the grace time is over."""
        error = ShuttingDownError()
        was_ready, self._is_stopping = self.is_ready, True
        self.engine.refuse(error)
        self._refuse_model(error)
        if was_ready:
            try:
                async with asyncio.timeout(self.options.grace_seconds):
                    await self.engine.drained()
            except TimeoutError:
                _log.warning("requests_cut_off", num_requests=self.engine.num_requests)
        self.engine.fail_all(error)

    def _expose_load(self) -> None:
        """Gauges are read where the figures are, whenever somebody asks."""
        metrics, engine = self.metrics, self.engine
        metrics.requests_running.set_function(lambda: engine.num_running)
        metrics.requests_waiting.set_function(lambda: engine.num_waiting)
        metrics.steps_in_flight.labels("0").set_function(lambda: engine.num_steps_in_flight)
        metrics.kv_blocks.labels("0", "used").set_function(lambda: engine.num_blocks_used)
        metrics.kv_blocks.labels("0", "free").set_function(
            lambda: engine.num_blocks - engine.num_blocks_used
        )
        metrics.kv_utilization.labels("0").set_function(
            lambda: engine.num_blocks_used / max(1, engine.num_blocks)
        )
        metrics.replica_serving.labels("0").set_function(lambda: self.is_ready)
        metrics.workers.labels("used").set_function(lambda: len(self._used_workers()))
        metrics.workers.labels("spare").set_function(
            lambda: len(self.membership.members) - len(self._used_workers())
        )

    def _used_workers(self) -> list[Member]:
        used = self.replica.members if self.replica else ()
        return [member for member in self.membership.members if member in used]

    def _give_up(self, error: StagemeshError) -> None:
        self._failure = str(error)
        _log.error("model_failed", model=self.options.model, cause=self._failure)
        refusal = NotReadyError(phase=f"failed: {self._failure}")
        self.engine.refuse(refusal)
        self._refuse_model(refusal)
        self.changed.set()

    def _refuse_model(self, error: StagemeshError) -> None:
        if self.model.done():
            return
        self.model.set_exception(error)
        self.model.exception()  # marks it as seen: there may be no request to tell it to

    def _note_loading(self, phase: str, done: int, total: int) -> None:
        self._loading = f"{phase}: {100 * done // total}%" if total else phase
