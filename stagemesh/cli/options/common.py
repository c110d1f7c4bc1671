"""Declares the options that several commands share, except API keys and TLS (`security.py`).

Every option has an environment variable STAGEMESH_<OPTION>.
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
_LIFE = Group("Lifecycle", sort_key=8)
_LOGS = Group("Logs", sort_key=9)


def _check_stages(type_: Any, plan: "PlanOptions | None") -> None:
    if plan is None:
        return
    if plan.pp and plan.layers and plan.pp != len(plan.layers):
        raise ValueError(
            f"--pp {plan.pp} does not match --layers, which names {len(plan.layers)} stages; "
            "give only one of them"
        )
    if len(plan.tp) not in (1, plan.num_stages):
        raise ValueError(
            f"--tp names {len(plan.tp)} stages of {plan.num_stages}; give one number for all "
            "stages, or one per stage"
        )


@Parameter(name="*", group=_PLAN, validator=_check_stages)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How the model is partitioned over workers."""

    pp: Positive | None = None
    """Number of pipeline stages. [default: 1, or the length of --layers or --tp]"""

    tp: Annotated[Ranks, Parameter(show_default=False)] = (1,)
    """Tensor-parallel ranks per stage, one worker each: 2 for all, or 2,1,3. [default: 1]"""

    backend: Literal["auto", "shm", "gloo", "nccl"] = "auto"
    """Communication between ranks of a stage; auto is nccl on GPUs, otherwise shared memory."""

    collective_timeout: Wait = 30.0
    """Seconds that a rank waits for the other ranks of its stage before it fails."""

    overlap: Literal["auto", "on", "off"] = "auto"
    """Overlap communication with computation; auto decides by the expected gain."""

    dp: Replicas = 1
    """Number of replicas, complete pipelines that share the requests; at most 64."""

    layers: Layers | None = None
    """Number of layers of each stage, such as 3,20,7. [default: balanced by cost]"""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of weights; auto is the checkpoint's if all devices are fast at it, or float32."""

    max_model_len: Positive | None = None
    """Most tokens of prompt and answer together. [default: limited by model and memory]"""

    @property
    def num_stages(self) -> int:
        """The number of stages of one replica."""
        return self.pp or len(self.layers or ()) or len(self.tp)

    @property
    def num_workers(self) -> int:
        """The number of workers of all replicas."""
        num_ranks = sum(self.tp) if len(self.tp) > 1 else self.tp[0] * self.num_stages
        return num_ranks * self.dp


@Parameter(name="*", group=_BATCHING)
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How requests are scheduled and batched."""

    kv_memory: Annotated[Size, Parameter(show_default=False)] = 0
    """KV cache of each worker, such as 2GiB. [default: chosen from free memory]"""

    block_size: BlockSize = 16
    """Tokens per KV cache block, at most 1024."""

    max_sequences: MaxSequences = 64
    """Most sequences that run at the same time in a replica, up to 4096."""

    max_step_tokens: MaxStepTokens = 512
    """Most tokens in one microbatch, up to 65536; longer prompts are split into chunks."""

    policy: PolicyName = "adaptive"
    """Batching policy, which composes microbatches; docs/scheduling.md compares them."""

    tpot: Seconds | None = None
    """Target seconds per output token (TPOT) of the policy adaptive. [default: none]"""

    steps_in_flight: Positive | None = None
    """Most microbatches in flight. [default: one per stage; with adaptive, two]"""

    max_waiting: MaxWaiting = 1024
    """Most prompts in the queue, up to 1000000; further requests are rejected."""

    prefix_cache: Literal["on", "off"] = "on"
    """Reuse cached KV blocks for prompts that start with the same tokens."""


@Parameter(name="*", group=_DEVICE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The device and threads of a worker."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of each worker; auto is a GPU if this machine has one, otherwise the CPU."""

    device_sharers: Positive = 1
    """Number of workers that share each GPU and divide its memory for KV caches."""

    threads: Threads | None = None
    """CPU threads of each worker. [default: cores divided by workers on this machine]"""

    paced: Path | None = None
    """Simulate step times from this JSON file instead of computing; see docs/scheduling.md."""


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
    """Listening addresses of a coordinator, and limits of requests; port 0 is any free port."""

    grpc: Address = "127.0.0.1:50050"
    """Address of the gRPC API for clients."""

    http: Address = "127.0.0.1:8000"
    """Address of the HTTP API for clients: OpenAI's API, health checks and metrics."""

    mesh: Address = "127.0.0.1:50051"
    """Address that workers join, and that operators' commands use."""

    max_request_size: Annotated[RequestSize, Parameter(show_default=False)] = 4 * 2**20
    """Largest request that the APIs accept, up to 16MiB. [default: 4MiB]"""

    cors_origins: Origins | None = None
    """Origins whose web pages may call the HTTP API, such as https://a.org; * allows all."""


@Parameter(name="*", group=_LIFE)
@dataclass(frozen=True, slots=True, kw_only=True)
class StopOptions:
    """How a process shuts down."""

    grace: Wait = 10.0
    """Seconds that running requests have to finish, or to move, after a stop signal."""


@Parameter(name="*", group=_LIFE)
@dataclass(frozen=True, slots=True, kw_only=True)
class LifeOptions(StopOptions):
    """How a mesh shuts down, and how it recovers."""

    replan_after: Wait = 20.0
    """Seconds to wait for missing workers before serving with fewer stages."""


@Parameter(name="*", group=_LOGS)
@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The log, on standard error."""

    log_level: LogLevel = "warning"
    """Lowest severity of events that are logged."""

    log_json: Annotated[bool, Flag] = False
    """Log one JSON object per line."""


@Parameter(name="*", group=_LOGS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLogOptions(LogOptions):
    """The log of a command that runs one process of a mesh."""

    log_level: LogLevel = "info"
    """Lowest severity of events that are logged."""


PLAN_DEFAULTS = PlanOptions()
BATCHING_DEFAULTS = BatchingOptions()
DEVICE_DEFAULTS = DeviceOptions()
ADDRESS_DEFAULTS = AddressOptions()
STOP_DEFAULTS = StopOptions()
LIFE_DEFAULTS = LifeOptions()
LOG_DEFAULTS = LogOptions()
PROCESS_LOG_DEFAULTS = ProcessLogOptions()
