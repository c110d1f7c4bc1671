"""One rank of two as a process: `rank_process.py FOLDER NAME RANK SCENARIO OVERLAP`, over gloo.

Prints one JSON object: what it computed, or the error that ended it.
"""

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import EpochEndedError, StagemeshError
from runtime.model_config.tensor_parallel import share_widths
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.collectives.exchange import agree
from stage_worker.collectives.group import RankGroup
from stage_worker.collectives.group_factory import GroupSpec, open_group
from stage_worker.collectives.torch_group import TorchGroup
from stage_worker.execution.stage_runner import StageRunner
from tests.stage_worker.local_stages import make_spec

TIMEOUT_SECONDS = 30.0


def run_model(group: RankGroup, folder: Path) -> object:
    """Log-probabilities after two prompts in one step."""
    spec = make_spec(4, rank=group.rank, tp_size=2)
    stage = StageRunner.load(Checkpoint.open(folder), spec, lambda done, total: None)
    stage.open_epoch(20, 2, group)
    sampling = SlotSampling(num_logprobs=320)
    prompts = ((3, 14, 15, 92, 65, 35), (27, 18, 28))
    step = Step(
        0,
        opened_slots=tuple(SlotOpening(slot, sampling) for slot in range(2)),
        chunks=tuple(
            SequenceChunk(slot, 0, prompt, new_block_ids=(slot,), sample=True)
            for slot, prompt in enumerate(prompts)
        ),
    )
    sampled = stage.run(step, None).sampled
    return [[prompts[token.slot], token.top_ids, token.top_logprobs] for token in sampled]


def run_collectives(group: RankGroup) -> object:
    """A sum, and the columns of a matrix from uneven shares."""
    group.agree(Step(0), None)
    total = group.all_reduce_(torch.full((2, 3), float(group.rank + 1)))
    whole = torch.arange(14.0).view(2, 7)
    widths = share_widths(7, 2)
    part = whole.split(widths, dim=1)[group.rank]
    gathered, rooted = group.all_gather(part, widths), group.gather(part, widths)
    return [total.tolist(), gathered.tolist(), rooted if rooted is None else rooted.tolist()]


def run_sums_at_once(group: RankGroup) -> object:
    """Two concurrent sums, and a third collective during one of them."""
    group.agree(Step(0), None)
    first = group.begin_all_reduce_(torch.full((3,), float(group.rank + 1)))
    second = group.begin_all_reduce_(torch.full((2, 2), 10.0 * (group.rank + 1)))
    totals = [first.finish().tolist()]
    totals.append(group.all_reduce_(torch.ones(1)).tolist())
    return [*totals, second.finish().tolist()]


def connect_to_one_that_is_gone(group: RankGroup) -> object:
    """Rank 1 exits after the agreement, before it connects; rank 0 is aborted while it waits.

    Returns the seconds that rank 0 then waits.
    """
    assert isinstance(group, TorchGroup)
    if group.rank == 1:
        agree(group._segment, Step(0), None)
        os._exit(1)
    connecting, aborted_at = threading.Event(), []
    make = group._make

    def make_and_say_so(path: Path, made: Future[Any]) -> None:
        connecting.set()
        make(path, made)

    def report() -> None:
        connecting.wait()
        aborted_at.append(time.monotonic())
        group.abort(EpochEndedError(cause="sender_gone", detail="a stream broke"))

    group._make = make_and_say_so  # type: ignore[method-assign]
    threading.Thread(target=report).start()
    try:
        group.agree(Step(0), None)
    except EpochEndedError as error:
        return [error.cause, time.monotonic() - aborted_at[0]]
    return None


def close_beside_one_that_is_stopped(group: RankGroup) -> object:
    """Seconds of rank 0's `close` while rank 1, which its sum waits for, is stopped."""
    group.agree(Step(0), None)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    group.begin_all_reduce_(torch.ones(3))
    group.abort(EpochEndedError(cause="sender_gone", detail="a stream broke"))
    begun_at = time.monotonic()
    group.close()
    return time.monotonic() - begun_at


def wait_for_one_that_leaves(group: RankGroup, *, is_killed: bool) -> object:
    """Rank 1 exits after the agreement while rank 0 is in a collective."""
    group.agree(Step(0), None)
    if group.rank == 1 and is_killed:
        os._exit(1)
    if group.rank == 1:
        group.abort(EpochEndedError(cause="sender_gone", detail="a stream broke"))
        return None
    return group.all_reduce_(torch.ones(3)).tolist()


def main() -> None:
    folder, name, rank, scenario, overlap = sys.argv[1:]
    spec = GroupSpec(
        name, int(rank), 2, backend="gloo", timeout_seconds=TIMEOUT_SECONDS, overlap=overlap
    )
    group = open_group(spec)
    try:
        match scenario:
            case "model":
                answer = run_model(group, Path(folder))
            case "collectives":
                answer = run_collectives(group)
            case "sums":
                answer = run_sums_at_once(group)
            case "gone":
                answer = connect_to_one_that_is_gone(group)
            case "stopped":
                answer = close_beside_one_that_is_stopped(group)
            case _:
                answer = wait_for_one_that_leaves(group, is_killed=scenario == "killed")
    except StagemeshError as error:
        answer = {"code": error.code, "cause": getattr(error, "cause", ""), "text": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201
    # Both stay until both have printed: a close ends the other rank's waits, also for data that has
    # arrived and has not been read.
    sys.stdin.read()
    group.close()


if __name__ == "__main__":
    main()
