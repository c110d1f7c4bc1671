"""Owns the client's picture of one stage and of its ranks, as part of `state.py`'s."""

from dataclasses import dataclass, replace

from protos import mesh_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One tensor-parallel member of a stage; `worker_id` is empty while nobody has the place.

    Sums are over the epoch, as of the worker's last heartbeat; `wait_seconds` is the part of
    computing spent waiting for the other ranks.
    """

    rank: int
    worker_id: str
    weights_bytes: int
    peak_rss_bytes: int
    num_steps: int
    compute_seconds: float
    wait_seconds: float
    num_bytes_sent: int

    @property
    def work_seconds(self) -> float:
        """Computing without the waits: the rank that has most of it sets the stage's pace."""
        return self.compute_seconds - self.wait_seconds

    def since(self, earlier: "RankState") -> "RankState":
        """The sums of the time after `earlier`, which must be of the same epoch."""
        return replace(
            self,
            num_steps=self.num_steps - earlier.num_steps,
            compute_seconds=self.compute_seconds - earlier.compute_seconds,
            wait_seconds=self.wait_seconds - earlier.wait_seconds,
            num_bytes_sent=self.num_bytes_sent - earlier.num_bytes_sent,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """One stage; seconds, frames and bytes are rank 0's over the epoch, the hop is the leaving one.

    Weights and loading are those of all ranks together, `peak_rss_bytes` is the largest rank's.
    """

    stage: int
    first_layer: int
    num_layers: int
    worker_ids: tuple[str, ...]
    compute_seconds: float
    idle_seconds: float
    receive_seconds: float
    queue_seconds: float
    send_seconds: float
    send_hidden_seconds: float
    num_frames_sent: int
    num_bytes_sent: int
    num_steps: int
    weights_bytes: int
    peak_rss_bytes: int
    load_done_bytes: int
    load_total_bytes: int
    ranks: tuple[RankState, ...]

    def since(self, earlier: "StageState") -> "StageState":
        """The sums of the time after `earlier`, which must be of the same epoch."""
        return replace(
            self,
            compute_seconds=self.compute_seconds - earlier.compute_seconds,
            idle_seconds=self.idle_seconds - earlier.idle_seconds,
            receive_seconds=self.receive_seconds - earlier.receive_seconds,
            queue_seconds=self.queue_seconds - earlier.queue_seconds,
            send_seconds=self.send_seconds - earlier.send_seconds,
            send_hidden_seconds=self.send_hidden_seconds - earlier.send_hidden_seconds,
            num_frames_sent=self.num_frames_sent - earlier.num_frames_sent,
            num_bytes_sent=self.num_bytes_sent - earlier.num_bytes_sent,
            num_steps=self.num_steps - earlier.num_steps,
            ranks=tuple(
                now.since(before) for now, before in zip(self.ranks, earlier.ranks, strict=True)
            ),
        )


def stage_from_proto(message: mesh_pb2.StageState) -> StageState:
    """One stage of a `GetState` answer."""
    return StageState(
        stage=message.stage,
        first_layer=message.first_layer,
        num_layers=message.num_layers,
        worker_ids=tuple(message.worker_ids),
        compute_seconds=message.compute_seconds,
        idle_seconds=message.idle_seconds,
        receive_seconds=message.receive_seconds,
        queue_seconds=message.queue_seconds,
        send_seconds=message.send_seconds,
        send_hidden_seconds=message.send_hidden_seconds,
        num_frames_sent=message.num_frames_sent,
        num_bytes_sent=message.num_bytes_sent,
        num_steps=message.num_steps,
        weights_bytes=message.weights_bytes,
        peak_rss_bytes=message.peak_rss_bytes,
        load_done_bytes=message.load_done_bytes,
        load_total_bytes=message.load_total_bytes,
        ranks=tuple(
            RankState(
                rank=rank.rank,
                worker_id=rank.worker_id,
                weights_bytes=rank.weights_bytes,
                peak_rss_bytes=rank.peak_rss_bytes,
                num_steps=rank.activity.num_steps,
                compute_seconds=rank.activity.compute_seconds,
                wait_seconds=rank.activity.wait_seconds,
                num_bytes_sent=rank.activity.num_bytes_sent,
            )
            for rank in message.ranks
        ),
    )
