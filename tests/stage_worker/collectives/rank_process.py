"""One rank of two as a process: `rank_process.py FOLDER NAME RANK SCENARIO`, over gloo.

Prints one JSON object: what it computed, or the error that ended it.
"""

import json
import os
import sys
from pathlib import Path

import torch

from runtime.checkpoint import Checkpoint
from runtime.errors import EpochEndedError, StagemeshError
from runtime.shares import share_widths
from runtime.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.collectives.group import RankGroup
from stage_worker.collectives.opening import GroupSpec, open_group
from stage_worker.stage import Stage
from tests.stage_worker.local_pipeline import make_spec


def run_model(group: RankGroup, folder: Path) -> object:
    """Log-probabilities after two prompts in one step."""
    spec = make_spec(4, rank=group.rank, tp_size=2)
    stage = Stage.load(Checkpoint.open(folder), spec, lambda done, total: None)
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


def wait_for_one_that_leaves(group: RankGroup, *, is_killed: bool) -> object:
    """Rank 1 is gone after the agreement, and rank 0 in a collective."""
    group.agree(Step(0), None)
    if group.rank == 1 and is_killed:
        os._exit(1)
    if group.rank == 1:
        group.abort(EpochEndedError(cause="sender_gone", detail="a stream broke"))
        return None
    return group.all_reduce_(torch.ones(3)).tolist()


def main() -> None:
    folder, name, rank, scenario = sys.argv[1:]
    group = open_group(GroupSpec(name, int(rank), 2, backend="gloo", timeout_seconds=30))
    try:
        match scenario:
            case "model":
                answer = run_model(group, Path(folder))
            case "collectives":
                answer = run_collectives(group)
            case _:
                answer = wait_for_one_that_leaves(group, is_killed=scenario == "killed")
    except StagemeshError as error:
        answer = {"code": error.code, "cause": getattr(error, "cause", ""), "text": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201
    if group.rank == 1:
        sys.stdin.read()  # stays until rank 0 has answered: who closes ends the waits of others
    group.close()


if __name__ == "__main__":
    main()
