"""Owns the options that commands share, but for those on keys and TLS, which `security.py` owns.

Every option has an environment variable STAGEMESH_<OPTION>. Nothing here acts on a value.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from runtime.errors import InvalidRequestError
from scheduler import PolicyName
from stagemesh.cli.options.option_types import (
    Address,
    BlockSize,
    Flag,
    Layers,
    LogLevel,
    MaxSequences,
    MaxStepTokens,
    MaxWaiting,
    Origins,
    Positive,
    Ranks,
    Replicas,
    RequestSize,
    Seconds,
    Size,
    Threads,
    Wait,
)
from stagemesh.launcher.ports import check_conflicts

_PLAN = Group("Plan", sort_key=1)
_BATCHING = Group("Batching", sort_key=2)
_DEVICE = Group("Device", sort_key=3)
_ADDRESSES = Group("Addresses", sort_key=4)
_LIFE = Group("Life", sort_key=8)
_LOGS = Group("Logs", sort_key=9)


def _check_stages(type_: Any, plan: "PlanOptions | None") -> None:
    if plan is None:
        return
    if plan.pp and plan.layers and plan.pp != len(plan.layers):
        raise ValueError(
            f"--pp {plan.pp} does not match --layers, which names {len(plan.layers)} stages; "
            "leave one of them out"
        )
    if len(plan.tp) not in (1, plan.num_stages):
        raise ValueError(
            f"--tp names {len(plan.tp)} stages of {plan.num_stages}; give one number, or one each"
        )


@Parameter(name="*", group=_PLAN, validator=_check_stages)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How the model is cut, and what every stage is told."""

    pp: Positive | None = None
    """Pipeline stages. [default: one, or as many as --layers or --tp names]"""

    tp: Annotated[Ranks, Parameter(show_default=False)] = (1,)
    """Tensor-parallel ranks of each stage, one worker each: as 2, or 2,1,3. [default: 1]"""

    backend: Literal["auto", "shm", "gloo", "nccl"] = "auto"
    """How the ranks of a stage exchange data; auto: nccl on CUDA, or shared memory."""

    collective_timeout: Wait = 30.0
    """Seconds that a rank waits for the others of its stage."""

    overlap: Literal["auto", "on", "off"] = "auto"
    """Receive, compute, send and, with ranks, add up at once; auto: if it pays; off: in turns."""

    dp: Replicas = 1
    """Replicas, at most 64: whole pipelines that share the requests."""

    layers: Layers | None = None
    """Layers of each stage, as 3,20,7. [default: balanced by cost]"""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Numbers of the model; auto: the checkpoint's where fast, or float32."""

    max_model_len: Positive | None = None
    """Longest prompt plus answer, in tokens. [default: what model and memory allow]"""

    @property
    def num_stages(self) -> int:
        """Stages asked for."""
        return self.pp or len(self.layers or ()) or len(self.tp)

    @property
    def num_workers(self) -> int:
        """Workers of all replicas."""
        num_ranks = sum(self.tp) if len(self.tp) > 1 else self.tp[0] * self.num_stages
        return num_ranks * self.dp


@Parameter(name="*", group=_BATCHING)
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How requests share the mesh."""

    kv_memory: Annotated[Size, Parameter(show_default=False)] = 0
    """Memory for the KV cache of each worker, as 2GiB. [default: the worker chooses]"""

    block_size: BlockSize = 16
    """Tokens in one KV block, at most 1024."""

    max_sequences: MaxSequences = 64
    """Sequences that run at the same time, at most 4096."""

    max_step_tokens: MaxStepTokens = 512
    """Tokens of one microbatch, at most 65536: longer prompts go in chunks."""

    policy: PolicyName = "adaptive"
    """What decides on the work of each microbatch; docs/scheduling.md compares them."""

    tpot: Seconds | None = None
    """Time per output token that the policy adaptive keeps to, in seconds. [default: none]"""

    steps_in_flight: Positive | None = None
    """Most microbatches under way at once. [default: one a stage, two with adaptive]"""

    max_waiting: MaxWaiting = 1024
    """Prompts that may wait, at most 1000000; more are refused."""

    prefix_cache: Literal["on", "off"] = "on"
    """Compute what prompts begin with in common only once, while it is in the KV cache."""


@Parameter(name="*", group=_DEVICE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What a worker computes on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of each worker; auto: its GPU if this machine has any."""

    device_sharers: Positive = 1
    """Workers that share a GPU, and divide its memory for their KV caches."""

    threads: Threads | None = None
    """CPU threads of each worker. [default: the cores, divided by the workers started here]"""

    paced: Path | None = None
    """Compute nothing: take the times that this JSON file models, as in docs/scheduling.md."""


def _check_addresses(type_: Any, addresses: "AddressOptions | None") -> None:
    if addresses is None:
        return
    try:
        check_conflicts(
            {"--grpc": addresses.grpc, "--http": addresses.http, "--mesh": addresses.mesh}
        )
    except InvalidRequestError as error:
        raise ValueError(error.problem) from None


@Parameter(name="*", group=_ADDRESSES, validator=_check_addresses)
@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """Where a coordinator listens, and what its HTTP API takes; port 0 takes a free one."""

    grpc: Address = "127.0.0.1:50050"
    """The gRPC API for clients."""

    http: Address = "127.0.0.1:8000"
    """The HTTP API for clients: OpenAI's API, probes and metrics."""

    mesh: Address = "127.0.0.1:50051"
    """The API for workers, and for operators."""

    max_request_size: Annotated[RequestSize, Parameter(show_default=False)] = 4 * 2**20
    """Largest request at either API, at most 16MiB. [default: 4MiB]"""

    cors_origins: Origins | None = None
    """Web pages of these origins, as https://a.org, may call the HTTP API; * is all."""


@Parameter(name="*", group=_LIFE)
@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions:
    """How a process ends."""

    grace: Wait = 10.0
    """Seconds that what runs may take to end, or to go on elsewhere, after a stop."""


@Parameter(name="*", group=_LIFE)
@dataclass(frozen=True, slots=True, kw_only=True)
class LifeOptions(StopOptions):
    """How a mesh ends, and lives on."""

    replan_after: Wait = 20.0
    """Seconds to wait for missing workers before making do with fewer stages."""


@Parameter(name="*", group=_LOGS)
@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is logged, on standard error."""

    log_level: LogLevel = "warning"
    """The least severe events to show."""

    log_json: Annotated[bool, Flag] = False
    """One JSON object a line."""


@Parameter(name="*", group=_LOGS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLogOptions(LogOptions):
    """What is logged by a command that shows nothing else."""

    log_level: LogLevel = "info"
    """The least severe events to show."""


PLAN_DEFAULTS = PlanOptions()
BATCHING_DEFAULTS = BatchingOptions()
DEVICE_DEFAULTS = DeviceOptions()
ADDRESS_DEFAULTS = AddressOptions()
STOP_DEFAULTS = StopOptions()
LIFE_DEFAULTS = LifeOptions()
LOG_DEFAULTS = LogOptions()
PROCESS_LOG_DEFAULTS = ProcessLogOptions()
