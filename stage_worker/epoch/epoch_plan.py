"""Validates an `OpenEpoch` request and turns it into one rank's plan for the epoch.

The senders and receivers of a rank follow from the numbers of ranks: see `hidden_partition.py`.
"""

from dataclasses import dataclass

from protos import stage_pb2
from runtime.errors import (
    InsecureMeshError,
    InvalidRequestError,
    NeverFitsError,
    NotEnoughMemoryError,
)
from runtime.rpc.tls import DialPolicy, Role
from stage_worker.collectives.group import RankGroup
from stage_worker.collectives.group_factory import GroupSpec, open_group
from stage_worker.loading.loading import LoadedStage
from stage_worker.transport.frame_assembly import ReceivePlan
from stage_worker.transport.frame_codec import epoch_name
from stage_worker.transport.hidden_partition import hidden_interval, overlapping_ranks
from stage_worker.transport.stage_sender import LinkPlan

_MIN_WINDOW, _MAX_WINDOW = 2, 1024
_MAX_TABLE_BYTES = 2**30
_BACKENDS = {
    stage_pb2.COLLECTIVE_BACKEND_UNSPECIFIED: "auto",
    stage_pb2.COLLECTIVE_BACKEND_AUTO: "auto",
    stage_pb2.COLLECTIVE_BACKEND_SHM: "shm",
    stage_pb2.COLLECTIVE_BACKEND_GLOO: "gloo",
    stage_pb2.COLLECTIVE_BACKEND_NCCL: "nccl",
}
_OVERLAPS = {
    stage_pb2.OVERLAP_UNSPECIFIED: "auto",
    stage_pb2.OVERLAP_AUTO: "auto",
    stage_pb2.OVERLAP_ON: "on",
    stage_pb2.OVERLAP_OFF: "off",
}


@dataclass(frozen=True, slots=True)
class RankEpochPlan:
    """Where one rank's steps come from and go to; the last stage has no links.

    Rank 0 reports a result for every step, the other ranks only failures.
    """

    receive: ReceivePlan
    links: tuple[LinkPlan, ...] = ()
    rank: int = 0
    is_sequential: bool = False


def check_limits(
    request: stage_pb2.OpenEpochRequest, loaded: LoadedStage, dial_policy: DialPolicy
) -> None:
    """Refuses a request that does not fit the loaded stage; allocates and dials nothing."""
    for name in ("num_kv_blocks", "max_sequences", "max_step_tokens", "num_senders"):
        if getattr(request, name) < 1:
            raise InvalidRequestError(field=name, problem="must be at least 1")
    min_window = 1 if request.overlap == stage_pb2.OVERLAP_OFF else _MIN_WINDOW
    if not min_window <= request.window <= _MAX_WINDOW:
        problem = f"must be between {min_window} and {_MAX_WINDOW}"
        raise InvalidRequestError(field="window", problem=problem)
    if request.num_kv_blocks > loaded.num_kv_blocks:
        raise NeverFitsError(
            num_blocks_needed=request.num_kv_blocks, num_blocks=loaded.num_kv_blocks
        )
    table_bytes = loaded.stage.block_table_bytes(request.max_sequences)
    if table_bytes > _MAX_TABLE_BYTES:
        raise NotEnoughMemoryError(
            needed_bytes=table_bytes,
            available_bytes=_MAX_TABLE_BYTES,
            what=f"block tables for {request.max_sequences} sequences",
        )
    _check_peers(request, loaded)
    for peer in request.next:
        if not dial_policy.includes(peer.address):
            raise InsecureMeshError(option="the next stage's address", address=peer.address)


def make_epoch_plan(
    request: stage_pb2.OpenEpochRequest, loaded: LoadedStage, dial_policy: DialPolicy
) -> RankEpochPlan:
    """The plan of a request that `check_limits` has accepted."""
    hidden_size, spec = loaded.stage.config.hidden_size, loaded.stage.spec
    dtype = loaded.assignment.dtype
    own = hidden_interval(hidden_size, spec.rank, spec.tp_size)
    senders = overlapping_ranks(own, hidden_size, request.num_senders)
    receive = ReceivePlan(
        epoch=request.epoch,
        senders={0: None} if spec.is_first else senders,
        window=request.window,
        max_step_tokens=request.max_step_tokens,
        dtype=dtype,
        hidden_interval=None if spec.is_first else own,
    )
    links = tuple(
        LinkPlan(
            epoch=request.epoch,
            sender_rank=request.rank,
            address=request.next[rank].address,
            window=request.window,
            dtype=dtype,
            hidden_interval=part,
            tls=None if dial_policy.tls is None else dial_policy.tls.credentials_for(Role.WORKER),
        )
        for rank, part in overlapping_ranks(own, hidden_size, len(request.next)).items()
    )
    is_sequential = request.overlap == stage_pb2.OVERLAP_OFF
    return RankEpochPlan(receive, links, request.rank, is_sequential)


def open_stage(request: stage_pb2.OpenEpochRequest, loaded: LoadedStage) -> RankGroup:
    """Opens the rank group and the stage's empty cache, on the device's thread."""
    group = open_group(_group_spec(request, loaded))
    try:
        loaded.stage.open_epoch(request.num_kv_blocks, request.max_sequences, group)
    except BaseException:
        group.close()
        raise
    return group


def _group_spec(request: stage_pb2.OpenEpochRequest, loaded: LoadedStage) -> GroupSpec:
    """The rank group of this stage in this epoch."""
    spec = loaded.stage.spec
    return GroupSpec(
        name=f"{epoch_name(request.epoch)}/{request.replica}/{request.stage}",
        rank=spec.rank,
        size=spec.tp_size,
        backend=_BACKENDS[request.backend],
        timeout_seconds=request.collective_timeout_seconds,
        device=spec.device,
        overlap=_OVERLAPS[request.overlap],
    )


def _check_peers(request: stage_pb2.OpenEpochRequest, loaded: LoadedStage) -> None:
    spec, hidden_size = loaded.stage.spec, loaded.stage.config.hidden_size
    if spec.is_last == bool(request.next) or len(request.next) > hidden_size:
        expected = "none on the last stage" if spec.is_last else f"1 to {hidden_size} here"
        problem = f"needs {expected}, got {len(request.next)} ranks"
        raise InvalidRequestError(field="next", problem=problem)
    ranks = [peer.rank for peer in request.next]
    if ranks != list(range(len(ranks))):
        problem = f"must name the ranks 0 to {len(ranks) - 1} in order, got {ranks}"
        raise InvalidRequestError(field="next", problem=problem)
    most = 1 if spec.is_first else hidden_size
    if request.num_senders > most:
        problem = f"is {request.num_senders}, at most {most} can send here"
        raise InvalidRequestError(field="num_senders", problem=problem)
    for name, known in (("backend", _BACKENDS), ("overlap", _OVERLAPS)):
        if getattr(request, name) not in known:
            problem = f"{getattr(request, name)} is not known"
            raise InvalidRequestError(field=name, problem=problem)
    if spec.tp_size > 1 and not request.collective_timeout_seconds > 0:
        raise InvalidRequestError(field="collective_timeout_seconds", problem="must be above 0")
