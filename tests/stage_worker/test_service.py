"""The Stage service over real streams: loading, epochs, steps through two workers, their ends."""

from collections.abc import Callable
from itertools import count

import grpc
import grpc.aio
import pytest
import torch

from protos import stage_pb2
from runtime import rpc
from runtime.checkpoint import Checkpoint
from runtime.errors import SlotError
from runtime.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.slot_table import SlotTable
from stage_worker.stage import Stage
from tests.stage_worker.live_worker import (
    ForwardCall,
    LiveWorker,
    coordinator_frame,
    live_workers,
    make_assignments,
    make_opening,
    next_result,
    open_pipeline,
)
from tests.tiny_models import TinyModel, make_tiny_llama

PROMPT = (5, 17, 250, 3, 9)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa")


def _prefill(number: int = 0, slot: int = 0, block: int = 0) -> Step:
    return Step(
        number,
        opened_slots=(SlotOpening(slot, SlotSampling(num_logprobs=3)),),
        chunks=(SequenceChunk(slot, 0, PROMPT, new_block_ids=(block,), sample=True),),
    )


async def _load_pipeline(workers: list[LiveWorker], model: TinyModel) -> None:
    layer_counts = {1: (4,), 2: (3, 1)}[len(workers)]
    for worker, assignment in zip(
        workers, make_assignments(model.folder, layer_counts), strict=True
    ):
        await worker.load(assignment)


async def _failure(worker: LiveWorker, epoch: stage_pb2.EpochId) -> stage_pb2.StageFailure:
    messages = [message async for message in worker.results(epoch)]
    assert messages[-1].HasField("failure")
    return messages[-1].failure


async def _end_of(call: ForwardCall) -> tuple[grpc.StatusCode, str]:
    """Status and code of an aborted stream."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read_all(call)
    code, _ = rpc.error_from_rpc(caught.value)
    return caught.value.code(), code


async def _read_all(call: ForwardCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_load_reports_progress_and_capacity(tiny_model: TinyModel) -> None:
    fingerprint = Checkpoint.open(tiny_model.folder).fingerprint
    async with live_workers(1) as (worker,):
        (assignment,) = make_assignments(tiny_model.folder, (4,), fingerprint)

        *progress, last = await worker.load(assignment)

        assert all(0 <= message.done_bytes <= message.total_bytes for message in progress)
        assert last.done_bytes == last.total_bytes == last.report.weights_bytes > 0
        assert last.report.weights_fingerprint == fingerprint
        assert last.report.num_kv_blocks == (1 << 20) // (2 * 8 * 2 * 16 * 4 * 4)
        state = await worker.state()
        assert state.state == stage_pb2.WORKER_STATE_LOADED
        assert state.assignment == assignment
        assert state.peak_rss_bytes >= state.rss_bytes > 0


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"weights_fingerprint": "beef"}, "fingerprint_mismatch", "beef"),
        ({"num_layers": 3}, "assignment", r"layers \[0, 3\)"),
        ({"first_layer": 1}, "assignment", r"layers \[1, 5\)"),
        ({"tp_size": 2}, "assignment", "rank 0 of 2"),
        ({"stage": 1}, "assignment", "stage 1"),
        ({"dtype": 0}, "invalid_request", "dtype"),
        ({"block_size": 0}, "invalid_request", "block_size"),
        ({"model": "/nowhere"}, "model_not_found", "/nowhere"),
    ],
)
async def test_load_refused_names_the_reason_and_leaves_the_worker_empty(
    tiny_model: TinyModel, changes: dict[str, str | int], code: str, message: str
) -> None:
    async with live_workers(1) as (worker,):
        (assignment,) = make_assignments(tiny_model.folder, (4,))
        for name, value in changes.items():
            setattr(assignment, name, value)

        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await worker.load(assignment)

        assert rpc.error_from_rpc(caught.value)[0] == code
        assert (await worker.state()).state == stage_pb2.WORKER_STATE_EMPTY


async def test_load_client_gone_stops_loading(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as (worker,):
        (assignment,) = make_assignments(tiny_model.folder, (4,))
        call = worker.stub.Load(stage_pb2.LoadRequest(assignment=assignment))
        call.cancel()

        await worker.load(assignment)  # the next one is not in its way

        assert (await worker.state()).state == stage_pb2.WORKER_STATE_LOADED


async def test_steps_through_two_stages_give_the_reference_token(tiny_model: TinyModel) -> None:
    async with live_workers(2) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        first, last = (worker.results(epoch) for worker in workers)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, _prefill()))

        result = await next_result(last)

        logprobs = tiny_model.logprobs(PROMPT)[-1]
        (token,) = result.sampled
        assert token.token_id == int(logprobs.argmax())
        assert token.top_ids == logprobs.topk(3).indices.tolist()
        assert torch.allclose(
            torch.tensor(list(token.top_logprobs)), logprobs.topk(3).values, atol=1e-4
        )
        timing = (await next_result(first)).timing
        assert timing.compute_seconds > 0
        assert timing.idle_seconds > 0
        assert timing.queue_seconds >= 0
        credit = await stream.read()
        assert isinstance(credit, stage_pb2.Credit)
        assert credit.step == 0


async def test_send_timing_comes_with_a_later_step(tiny_model: TinyModel) -> None:
    async with live_workers(2) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        first, last = (worker.results(epoch) for worker in workers)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, _prefill()))
        await next_result(first)
        await next_result(last)  # the send of step 0 has ended

        await stream.write(coordinator_frame(epoch, Step(1, released_slots=(0,))))
        send = (await next_result(first)).timing.send

        assert (send.step, send.num_frames) == (0, 1)
        assert send.num_bytes > len(PROMPT) * 64 * 4
        assert send.seconds > send.hidden_seconds >= 0
        await next_result(last)
        for worker in workers:
            state = await worker.state()
            assert (state.num_slots_used, state.num_kv_blocks_used) == (0, 0)
            assert state.num_steps == 2


async def test_results_that_attach_late_get_every_step(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        stream = workers[0].forward()
        for number in range(2):
            await stream.write(coordinator_frame(epoch, Step(number)))
            await stream.read()

        results = workers[0].results(epoch)

        assert [(await next_result(results)).step for _ in range(2)] == [0, 1]


async def test_step_gap_ends_the_epoch_and_the_worker_opens_another(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(2) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[1].results(epoch)
        await stream.write(coordinator_frame(epoch, Step(0)))
        await next_result(results)
        await stream.write(coordinator_frame(epoch, Step(2)))

        assert await _end_of(stream) == (grpc.StatusCode.FAILED_PRECONDITION, "step_gap")
        failure = await _failure(workers[0], epoch)
        assert (failure.code, failure.message) == ("step_gap", "expected step 1, got step 2")
        assert (await next_result(results)).failure.code == "epoch_ended"
        assert (await workers[0].state()).state == stage_pb2.WORKER_STATE_LOADED

        epoch = await open_pipeline(workers, counter=2)
        stream = workers[0].forward()
        results = workers[1].results(epoch)
        await stream.write(coordinator_frame(epoch, _prefill()))
        assert len((await next_result(results)).sampled) == 1


async def test_failure_in_a_later_stage_reaches_every_stream(tiny_model: TinyModel) -> None:
    async with live_workers(2) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[1].results(epoch)
        await stream.write(coordinator_frame(epoch, Step(0)))
        await next_result(results)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlotTable, "apply", _only_on_first_stage(SlotTable.apply))
            await stream.write(coordinator_frame(epoch, _prefill(1)))

            assert (await next_result(results)).failure.code == "slot"
        assert await _end_of(stream) == (grpc.StatusCode.UNAVAILABLE, "epoch_ended")
        failure = await _failure(workers[0], epoch)
        assert failure.code == "epoch_ended"
        assert "slot 0: refused here" in failure.message


async def test_next_stage_gone_ends_the_epoch_with_its_address(tiny_model: TinyModel) -> None:
    async with live_workers(2) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)

        await workers[1].stub.Unload(stage_pb2.UnloadRequest())

        failure = await _failure(workers[0], epoch)
        assert failure.code == "epoch_ended"
        assert f"next stage {workers[1].address}" in failure.message
        assert (await workers[1].state()).state == stage_pb2.WORKER_STATE_EMPTY


async def test_open_epoch_replaces_a_running_one(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        old = await open_pipeline(workers, counter=1)
        old_results, old_stream = workers[0].results(old), workers[0].forward()
        await old_stream.write(coordinator_frame(old, _prefill()))
        assert len((await next_result(old_results)).sampled) == 1

        new = await open_pipeline(workers, counter=2)

        assert await old_results.read() is grpc.aio.EOF  # ended, not failed
        assert (await _end_of(old_stream))[1] == "epoch_ended"
        assert (await workers[0].state()).num_kv_blocks_used == 0
        stream, results = workers[0].forward(), workers[0].results(new)
        await stream.write(coordinator_frame(new, _prefill()))
        assert len((await next_result(results)).sampled) == 1


async def test_stream_of_a_stale_epoch_costs_only_itself(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        old = await open_pipeline(workers, counter=1)
        epoch = await open_pipeline(workers, counter=2)
        straggler = workers[0].forward()
        await straggler.write(coordinator_frame(old, Step(0)))

        assert await _end_of(straggler) == (grpc.StatusCode.FAILED_PRECONDITION, "stale_epoch")
        results, stream = workers[0].results(epoch), workers[0].forward()
        await stream.write(coordinator_frame(epoch, Step(0)))
        assert (await next_result(results)).step == 0
        with pytest.raises(grpc.aio.AioRpcError, match="expected epoch coordinator/2"):
            await workers[0].results(old).read()


async def test_sender_that_leaves_ends_the_epoch(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, Step(0)))
        await stream.read()

        stream.cancel()

        assert "sender 0" in (await _failure(workers[0], epoch)).message


async def test_results_reader_that_leaves_ends_the_epoch(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[0].results(epoch)
        await stream.write(coordinator_frame(epoch, Step(0)))
        await next_result(results)

        results.cancel()

        assert await _end_of(stream) == (grpc.StatusCode.UNAVAILABLE, "epoch_ended")


async def test_garbage_on_forward_ends_the_epoch_with_a_frame_error(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as workers, rpc.dial(workers[0].address) as channel:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        raw: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
            "/stagemesh.v1.Stage/Forward"
        )()
        await raw.write(coordinator_frame(epoch, Step(0)).SerializeToString())
        await raw.write(b"\x0b garbage")

        assert (await _failure(workers[0], epoch)).code == "frame"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"window": 1}, "invalid_request"),
        ({"max_sequences": 0}, "invalid_request"),
        ({"num_kv_blocks": 10**6}, "never_fits"),
        ({"stage": 1}, "assignment"),
        ({"replica": 1}, "assignment"),
    ],
)
async def test_open_epoch_off_the_plan_is_refused(
    tiny_model: TinyModel, changes: dict[str, int], code: str
) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        request = make_opening(1)
        for name, value in changes.items():
            setattr(request, name, value)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await workers[0].open_epoch(request)

        assert rpc.error_from_rpc(caught.value)[0] == code


async def test_open_epoch_without_weights_stale_or_unreachable_next_is_refused(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as workers, live_workers(1) as others:
        with pytest.raises(grpc.aio.AioRpcError, match="nothing is loaded"):
            await workers[0].open_epoch(make_opening(1))
        first, _ = make_assignments(tiny_model.folder, (3, 1))
        await workers[0].load(first)
        with pytest.raises(grpc.aio.AioRpcError, match="no open epoch"):
            await workers[0].open_epoch(make_opening(1, next_address=others[0].address))
        with pytest.raises(grpc.aio.AioRpcError, match="later than coordinator/1"):
            await workers[0].open_epoch(make_opening(1, next_address=others[0].address))
        with pytest.raises(grpc.aio.AioRpcError, match="next: needs 1"):
            await workers[0].open_epoch(make_opening(2))


async def test_forward_without_an_epoch_is_refused() -> None:
    async with live_workers(1) as (worker,):
        assert await _end_of(worker.forward()) == (grpc.StatusCode.UNAVAILABLE, "epoch_ended")


async def test_record_canary_streams_layers_then_the_reference(tiny_model: TinyModel) -> None:
    async with live_workers(1) as (worker,):
        request = stage_pb2.RecordCanaryRequest(
            model=str(tiny_model.folder), token_ids=PROMPT, num_logprobs=4
        )

        *progress, last = [message async for message in worker.stub.RecordCanary(request)]

        assert [m.done_layers for m in progress] == sorted(m.done_layers for m in progress)
        assert last.top_ids == tiny_model.logprobs(PROMPT)[-1].topk(4).indices.tolist()


async def test_record_canary_without_tokens_is_refused(tiny_model: TinyModel) -> None:
    async with live_workers(1) as (worker,):
        request = stage_pb2.RecordCanaryRequest(model=str(tiny_model.folder))

        with pytest.raises(grpc.aio.AioRpcError, match="token_ids: must not be empty"):
            await worker.stub.RecordCanary(request).read()


async def test_bug_while_computing_ends_the_epoch_as_internal(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_workers(1) as workers:
        await _load_pipeline(workers, tiny_model)
        epoch = await open_pipeline(workers, counter=1)
        monkeypatch.setattr(Stage, "run", _broken_run)
        await workers[0].forward().write(coordinator_frame(epoch, Step(0)))

        assert (await _failure(workers[0], epoch)).code == "internal"


def _only_on_first_stage(apply: Callable[[SlotTable, Step], None]) -> Callable[..., None]:
    calls = count()

    def apply_once(table: SlotTable, step: Step) -> None:
        if next(calls):
            raise SlotError(slot=0, problem="refused here")
        apply(table, step)

    return apply_once


def _broken_run(*_: object) -> None:
    raise ZeroDivisionError
