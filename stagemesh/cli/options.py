"""Owns the options that commands share, and how they are handed on to child processes.

Every option has an environment variable STAGEMESH_<OPTION>. Nothing here acts on a value.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from runtime.errors import InvalidRequestError
from runtime.rpc import split_address
from scheduler import PolicyName
from stagemesh.values import parse_layers, parse_origins, parse_ranks, parse_size

_PLAN = Group("Plan", sort_key=1)
_BATCHING = Group("Batching", sort_key=2)
_DEVICE = Group("Device", sort_key=3)
_ADDRESSES = Group("Addresses", sort_key=4)
_ACCESS = Group("Access", sort_key=5)
_LIFE = Group("Life", sort_key=8)
_LOGS = Group("Logs", sort_key=9)


def _check_address(address: str) -> str:
    try:
        split_address(address)
    except InvalidRequestError as error:
        raise ValueError(error.problem) from None
    return address


def _convert(parse: Callable[[str], object], type_: Any, tokens: Sequence[Token]) -> object:
    return parse(tokens[0].value)


def _one_token(parse: Callable[[str], object], metavar: str) -> Parameter:
    converter = partial(_convert, parse)
    return Parameter(
        converter=converter, n_tokens=1, accepts_keys=False, metavar=metavar, negative=()
    )


def between(minimum: float, maximum: float) -> Parameter:
    """A number from `minimum` to `maximum`, both included."""
    return Parameter(validator=Number(gte=minimum, lte=maximum))


Positive = Annotated[int, between(1, 2**32 - 1)]
# What a mesh can make sense of: the schedule of one step is computed on the event loop.
MaxSequences = Annotated[int, between(1, 4096)]
MaxStepTokens = Annotated[int, between(1, 2**16)]
MaxWaiting = Annotated[int, between(1, 10**6)]
BlockSize = Annotated[int, between(1, 1024)]
Seconds = Annotated[float, between(1e-6, 1e6)]
Wait = Annotated[float, between(0.1, 86_400)]
Replicas = Annotated[int, between(1, 64)]
NotNegative = Annotated[int, between(0, 2**32 - 1)]
Size = Annotated[int, _one_token(parse_size, "SIZE")]
Layers = Annotated[tuple[int, ...], _one_token(parse_layers, "N,N,...")]
Ranks = Annotated[tuple[int, ...], _one_token(parse_ranks, "N[,N,...]")]
Origins = Annotated[tuple[str, ...], _one_token(parse_origins, "ORIGIN,...")]
Address = Annotated[str, _one_token(_check_address, "HOST:PORT")]
Flag = Parameter(negative=())
ApiKey = Annotated[str | None, Parameter(show_default=False)]
ExitWithParent = Annotated[bool, Parameter(show=False, negative=())]
LogLevel = Literal["debug", "info", "warning", "error"]


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

    overlap: Literal["on", "off"] = "on"
    """Receive, compute and send at the same time; off: one after the other, to compare."""

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
    """Most microbatches under way at once. [default: a stage's one, or two for adaptive]"""

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

    threads: Positive | None = None
    """CPU threads of each worker. [default: the machine's cores, shared by its workers]"""

    paced: Path | None = None
    """Compute nothing: take the times that this JSON file models, as in docs/scheduling.md."""


@Parameter(name="*", group=_ADDRESSES)
@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """Where a coordinator listens, and what its HTTP door takes; port 0 takes a free one."""

    grpc: Address = "127.0.0.1:50050"
    """The gRPC door for clients."""

    http: Address = "127.0.0.1:8000"
    """The HTTP door for clients: OpenAI's API, probes and metrics."""

    mesh: Address = "127.0.0.1:50051"
    """The door for workers."""

    max_request_size: Size = 4 * 2**20
    """Largest request at either door, as 4MiB."""

    cors_origins: Origins | None = None
    """Web pages of these origins, as https://a.org, may call the HTTP door; * is all."""


def _check_access(type_: Any, access: "AccessOptions | None") -> None:
    if access is None:
        return
    if access.api_keys is not None and access.allow_anonymous:
        raise ValueError("--allow-anonymous contradicts --api-keys; leave one of them out")
    limits = (access.key_max_in_flight, access.key_tokens_per_minute)
    if access.api_keys is None and (access.protect_state or any(limits)):
        raise ValueError("--protect-state and --key-... mean nothing without --api-keys FILE")


@Parameter(name="*", group=_ACCESS, validator=_check_access)
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Who may use the doors."""

    api_keys: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None
    """API keys, as `stagemesh keys add` writes them. [default: on loopback nobody needs one]"""

    allow_anonymous: Annotated[bool, Flag] = False
    """Let doors that other machines can reach serve anybody, without a key."""

    protect_state: Annotated[bool, Flag] = False
    """Ask for a key also at /metrics, /sd, /state, /version and for the mesh's state."""

    key_max_in_flight: Positive | None = None
    """Requests of one key at the same time, where FILE says nothing. [default: any]"""

    key_tokens_per_minute: Positive | None = None
    """Tokens of one key in a minute, read and generated, likewise. [default: any]"""


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
ACCESS_DEFAULTS = AccessOptions()
STOP_DEFAULTS = StopOptions()
LIFE_DEFAULTS = LifeOptions()
LOG_DEFAULTS = LogOptions()
PROCESS_LOG_DEFAULTS = ProcessLogOptions()


def as_arguments(*groups: object) -> Iterator[str]:
    """The command line that gives `groups`, dataclasses from above, to another process."""
    for group in groups:
        for field in fields(group):  # type: ignore[arg-type]
            yield from _as_argument("--" + field.name.replace("_", "-"), getattr(group, field.name))


def _as_argument(name: str, value: object) -> Iterator[str]:
    match value:
        case None | False:
            return
        case True:
            yield name
        case tuple():
            yield from (name, ",".join(map(str, value)))
        case _:
            yield from (name, str(value))
