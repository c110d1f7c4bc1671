"""Ranks in real processes: Transformers' numbers, and ends that leave no rank in a collective.

Case 21 (exo PR#2286, llama.cpp#22235): right in one process and gibberish over three stages. Here
the stages differ in their ranks, too. Case 3 (sglang#28424, #10214, exo PR#2048): ranks diverge.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import count

import grpc
import psutil
import pytest

from protos import stage_pb2, stage_pb2_grpc
from runtime.rpc import channels
from stagemesh import Client, GenerationRequest, Sampling, TokenIds
from tests.conftest import MESH_OPTIONS
from tests.integration.process_log import START_SECONDS
from tests.integration.processes import (
    Mesh,
    new_address,
    run_command,
    running_command,
    serving,
)
from tests.integration.tiny_chat import assert_greedy, assert_matches_reference
from tests.stage_worker.live_workers import (
    LiveWorker,
    coordinator_frame,
    make_assignments,
    make_opening,
    open_stage,
    prefill,
    read_failure,
)
from tests.tiny_models import TinyModel, make_tiny_llama
from tests.tiny_tokenizer import write_tiny_tokenizer

pytestmark = pytest.mark.integration

PROMPT = (5, 6, 7)
# Epochs of workers that outlive a test.
COUNTERS = count(1)
PROMPTS = (PROMPT, (9,), tuple(3 + 7 * n % 300 for n in range(150)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Four layers, four key/value heads."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = make_tiny_llama(folder, "untied_mha_bias")
    write_tiny_tokenizer(folder)
    return model


@pytest.fixture(scope="module")
def pair_of_ranks(model: TinyModel) -> Iterator[Mesh]:
    """One stage of two ranks."""
    with serving(str(model.folder), "--tp", "2", *MESH_OPTIONS) as mesh:
        yield mesh
        mesh.assert_idle()
        mesh.stop()


def assert_computes(mesh: Mesh, model: TinyModel) -> None:
    """Prompts of mixed lengths, in chunks and together, give Transformers' numbers."""
    answers = mesh.ask(
        GenerationRequest(
            prompts=tuple(TokenIds(prompt) for prompt in PROMPTS),
            sampling=Sampling(num_logprobs=model.vocab_size),
            max_tokens=6,
            ignore_eos=True,
        )
    )
    for index, prompt in enumerate(PROMPTS):
        assert len(answers.token_ids(index)) == 6
        assert_matches_reference(model, prompt, answers.of(index))


def assert_told_by_each_rank(mesh: Mesh) -> None:
    """Each rank's own bytes and waits, once heartbeats have brought all of them."""
    state = mesh.until(
        lambda state: all(
            rank.num_steps == stage.num_steps
            for stage in state.replicas[0].stages
            for rank in stage.ranks
        )
    )
    stages = state.replicas[0].stages
    first, (middle,), last = ([rank.num_bytes_sent for rank in stage.ranks] for stage in stages)
    # Halves, each with its frames' headers, then the whole with those of three lanes.
    assert first == pytest.approx([middle / 2] * 2, rel=0.2)
    assert last == [0, 0, 0]
    for stage in stages:
        for rank in stage.ranks:
            assert 0 <= rank.wait_seconds < rank.compute_seconds
            assert (rank.wait_seconds > 0) == (len(stage.ranks) > 1)


@pytest.mark.independent
def test_stages_of_two_one_and_three_ranks_match_transformers(model: TinyModel) -> None:
    with serving(str(model.folder), "--tp", "2,1,3", *MESH_OPTIONS) as mesh:
        assert_computes(mesh, model)
        (replica,) = mesh.state().replicas
        assert [len(stage.ranks) for stage in replica.stages] == [2, 1, 3]
        for stage in replica.stages:
            shares = [rank.weights_bytes / stage.weights_bytes for rank in stage.ranks]
            assert shares == pytest.approx([1 / len(shares)] * len(shares), abs=0.1)
        assert "2 rank 2" in run_command("status", "--target", mesh.target).stdout
        assert_told_by_each_rank(mesh)
        mesh.assert_idle()
        mesh.stop()


@pytest.mark.independent
@pytest.mark.parametrize(
    ("overlap", "backend"),
    [
        pytest.param("off", "gloo", marks=pytest.mark.slow),
        pytest.param("on", "gloo", marks=pytest.mark.slow),
        ("on", "shm"),
    ],
)
def test_stages_of_two_ranks_with_any_overlap_match_transformers(
    overlap: str, backend: str, model: TinyModel
) -> None:
    """Sends in turns, or steps in two slices that take turns; the same tokens as ever."""
    split = ("--pp", "2", "--tp", "2", "--overlap", overlap, "--backend", backend)
    with serving(str(model.folder), *split, *MESH_OPTIONS) as mesh:
        assert_computes(mesh, model)
        mesh.assert_idle()
        mesh.stop()


def test_rank_killed_in_mid_answer_is_started_again_and_the_tokens_are_the_same(
    pair_of_ranks: Mesh, model: TinyModel
) -> None:
    assert_computes(pair_of_ranks, model)
    request = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=400, ignore_eos=True)
    with Client(pair_of_ranks.target) as client:
        updates = client.infer(request, timeout_seconds=90)
        first = next(updates)
        state = client.state()
        pids = {worker.worker_id: worker.pid for worker in state.workers}
        psutil.Process(pids[state.replicas[0].stages[0].ranks[1].worker_id]).kill()
        rest = list(updates)
    tokens = tuple(token.id for update in (first, *rest) for token in update.tokens)
    assert len(tokens) == 400
    assert_greedy(model, PROMPT, tokens)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--tp", "5"), "5 ranks a stage for 4 key/value heads (4 query heads)"),
        (("--tp", "1,5"), "5 ranks a stage for 4 key/value heads (4 query heads)"),
        (("--tp", "2", "--backend", "nccl", "--device", "cpu"), "--backend: nccl needs a GPU"),
    ],
    ids=["tp", "tp_of_a_stage", "nccl"],
)
def test_ranks_that_cannot_be_are_refused_before_a_worker_starts(
    options: tuple[str, ...], expected: str, model: TinyModel
) -> None:
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--mesh", "127.0.0.1:0")
    done = run_command("serve", str(model.folder), *options, *addresses)
    assert done.returncode == 1
    assert f"error: {expected}" in done.stderr


def _other_header(frame: stage_pb2.Frame) -> None:
    frame.header.chunks[0].token_ids[0] += 1


def _wrong_shape(frame: stage_pb2.Frame) -> None:
    frame.activation.num_tokens += 1


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (_other_header, "header_mismatch", ("expected step 0 with digest", "got step 0 with")),
        (_wrong_shape, "frame", ("activation rows: expected 5, got 6",)),
    ],
)
async def test_rank_with_a_wrong_frame_ends_the_epoch_in_every_process_within_a_second(
    change: Callable[[stage_pb2.Frame], None],
    code: str,
    values: tuple[str, ...],
    pair_of_workers: list[str],
) -> None:
    """The test is the coordinator and the two ranks of the stage before."""
    async with AsyncExitStack() as stack:
        dialled = [await stack.enter_async_context(channels.dial(each)) for each in pair_of_workers]
        workers = [
            LiveWorker(address, stage_pb2_grpc.StageStub(channel))
            for address, channel in zip(pair_of_workers, dialled, strict=True)
        ]
        opening = make_opening(next(COUNTERS), stage=1, num_senders=2)
        await open_stage(workers, opening)
        for rank, worker in enumerate(workers):
            frame = coordinator_frame(opening.epoch, prefill())
            frame.sender_rank = rank
            frame.activation.CopyFrom(
                stage_pb2.ActivationSpec(
                    dtype=stage_pb2.DTYPE_FLOAT32,
                    num_tokens=len(frame.header.chunks[0].token_ids),
                    hidden_begin=32 * rank,
                    hidden_end=32 * (rank + 1),
                )
            )
            frame.payload = bytes(4 * 32 * frame.activation.num_tokens)
            if rank == 1:
                change(frame)
            await worker.forward().write(frame)
        async with asyncio.timeout(10.0):
            failures = [await read_failure(worker, opening.epoch) for worker in workers]
    for failure in failures:
        assert failure.code == code
        assert all(value in failure.message for value in values)


@pytest.fixture(scope="module")
def pair_of_workers(model: TinyModel) -> Iterator[list[str]]:
    """Two worker processes without a coordinator: the ranks of the second of two stages."""
    addresses = [new_address() for _ in range(2)]
    (_, assignment) = make_assignments(model.folder, (2, 2))
    with ExitStack() as stack:
        for rank, address in enumerate(addresses):
            command = stack.enter_context(
                running_command("worker", "--coordinator", "127.0.0.1:1", "--listen", address)
            )
            command.log.wait_for("not_joined")
            assignment.rank, assignment.tp_size = rank, len(addresses)
            with grpc.insecure_channel(address) as channel:
                load = channel.unary_stream(
                    "/stagemesh.v1.Stage/Load",
                    stage_pb2.LoadRequest.SerializeToString,
                    stage_pb2.LoadProgress.FromString,
                )
                list(load(stage_pb2.LoadRequest(assignment=assignment), timeout=START_SECONDS))
        yield addresses
