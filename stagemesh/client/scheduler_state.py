"""Owns the client's picture of a replica's scheduler: what it steers by, and what comes of it.

The classes mirror `protos/mesh.proto`; 0 stands for no bound, and for what is not known.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

from google.protobuf.message import Message

from protos import mesh_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """One stage's cost model in seconds, and how far it is off."""

    fixed: float
    prompt: float
    per_token: float
    beyond_128: float
    beyond_512: float
    per_attention: float
    per_context: float
    per_sample: float
    error: float
    safety: float
    num_records: int
    num_resets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubbles:
    """Idle seconds of the epoch over all stages, by cause."""

    starved: float
    fill: float
    imbalance: float
    exposed_send: float
    coordinator: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """How often the policy decided what in the epoch."""

    cycles: int
    more_in_flight: int
    fewer_in_flight: int
    fallbacks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRatios:
    """Measured over what is possible at best, of the latest steps and sequences."""

    throughput: float
    occupancy: float
    tpot: float
    ttft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the policy steers by: times are recent means of a step on the slowest stage."""

    policy: str
    steps_in_flight_target: int
    target_seconds: float
    target_tokens: int
    planned_seconds: float
    actual_seconds: float
    overhead_seconds: float
    error: float
    warmup: bool
    fallback: bool
    stages: tuple[StageCosts, ...]
    bubbles: Bubbles
    decisions: Decisions
    ratios: LimitRatios


_Mirror = TypeVar("_Mirror", StageCosts, Bubbles, Decisions, LimitRatios)


def scheduler_from_proto(message: mesh_pb2.SchedulerState) -> SchedulerState:
    """The scheduler's part of one `GetState` answer."""
    return SchedulerState(
        policy=message.policy,
        steps_in_flight_target=message.steps_in_flight_target,
        target_seconds=message.target_seconds,
        target_tokens=message.target_tokens,
        planned_seconds=message.planned_seconds,
        actual_seconds=message.actual_seconds,
        overhead_seconds=message.overhead_seconds,
        error=message.error,
        warmup=message.warmup,
        fallback=message.fallback,
        stages=tuple(_mirror(StageCosts, stage) for stage in message.stages),
        bubbles=_mirror(Bubbles, message.bubbles),
        decisions=_mirror(Decisions, message.decisions),
        ratios=_mirror(LimitRatios, message.ratios),
    )


def _mirror(kind: type[_Mirror], message: Message) -> _Mirror:
    """A class whose fields are all the message's own."""
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})
