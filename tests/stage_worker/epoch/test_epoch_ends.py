"""The ways in which an epoch ends: where each is reported, and the worker's state after it."""

from collections.abc import Callable
from itertools import count

import grpc
import grpc.aio
import pytest

from protos import stage_pb2
from runtime.errors import SlotError
from runtime.protocol.step import Step
from runtime.rpc import channels
from stage_worker.execution.slot_table import SlotTable
from stage_worker.execution.stage_runner import StageRunner
from tests.stage_worker.live_workers import (
    coordinator_frame,
    live_workers,
    load_pipeline,
    next_result,
    open_pipeline,
    prefill,
    read_failure,
    stream_error,
)
from tests.tiny_models import TinyModel, make_tiny_llama


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa")


async def test_step_gap_ends_the_epoch_and_the_worker_opens_another(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(2) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[1].results(epoch)
        await stream.write(coordinator_frame(epoch, Step(0)))
        await next_result(results)
        await stream.write(coordinator_frame(epoch, Step(2)))

        assert await stream_error(stream) == (grpc.StatusCode.FAILED_PRECONDITION, "step_gap")
        failure = await read_failure(workers[0], epoch)
        assert (failure.code, failure.message) == ("step_gap", "expected step 1, got step 2")
        assert (await next_result(results)).failure.code == "sender_gone"
        assert (await workers[0].state()).state == stage_pb2.WORKER_STATE_LOADED

        epoch = await open_pipeline(workers, counter=2)
        stream = workers[0].forward()
        results = workers[1].results(epoch)
        await stream.write(coordinator_frame(epoch, prefill()))
        assert len((await next_result(results)).sampled) == 1


async def test_epoch_that_failed_holds_no_slots_or_blocks(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[0].results(epoch)
        await stream.write(coordinator_frame(epoch, prefill()))
        await next_result(results)
        assert (await workers[0].state()).num_slots_used == 1
        stream.cancel()
        assert (await next_result(results)).HasField("failure")

        state = await workers[0].state()

        assert (state.num_slots_used, state.num_kv_blocks_used) == (0, 0)


async def test_failure_in_a_later_stage_reaches_every_stream(tiny_model: TinyModel) -> None:
    async with live_workers(2) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[1].results(epoch)
        await stream.write(coordinator_frame(epoch, Step(0)))
        await next_result(results)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlotTable, "apply", _only_on_first_stage(SlotTable.apply))
            await stream.write(coordinator_frame(epoch, prefill(1)))

            assert (await next_result(results)).failure.code == "slot"
        assert await stream_error(stream) == (grpc.StatusCode.UNAVAILABLE, "epoch_ended")
        failure = await read_failure(workers[0], epoch)
        expected = f"next stage {workers[1].address}: slot 0: refused here"
        assert (failure.code, failure.message) == ("slot", expected)


async def test_next_stage_that_unloads_ends_the_epoch_with_its_address(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(2) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)

        await workers[1].stub.Unload(stage_pb2.UnloadRequest())

        failure = await read_failure(workers[0], epoch)
        assert failure.code == "closed"
        assert f"next stage {workers[1].address}" in failure.message
        assert (await workers[1].state()).state == stage_pb2.WORKER_STATE_EMPTY


async def test_sender_that_disconnects_ends_the_epoch(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, Step(0)))
        await stream.read()

        stream.cancel()

        assert "sender 0" in (await read_failure(workers[0], epoch)).message


async def test_results_reader_that_disconnects_ends_the_epoch(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        stream, results = workers[0].forward(), workers[0].results(epoch)
        await stream.write(coordinator_frame(epoch, Step(0)))
        await next_result(results)

        results.cancel()

        assert await stream_error(stream) == (grpc.StatusCode.UNAVAILABLE, "epoch_ended")


async def test_malformed_frame_ends_the_epoch_with_a_frame_error(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as workers, channels.dial(workers[0].address) as channel:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        raw: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
            "/stagemesh.v1.Stage/Forward"
        )()
        await raw.write(coordinator_frame(epoch, Step(0)).SerializeToString())
        await raw.write(b"\x0b garbage")

        assert (await read_failure(workers[0], epoch)).code == "frame"


async def test_bug_while_computing_ends_the_epoch_as_internal(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        monkeypatch.setattr(StageRunner, "run", _broken_run)
        await workers[0].forward().write(coordinator_frame(epoch, Step(0)))

        assert (await read_failure(workers[0], epoch)).code == "internal"


def _only_on_first_stage(apply: Callable[[SlotTable, Step], None]) -> Callable[..., None]:
    calls = count()

    def apply_once(table: SlotTable, step: Step) -> None:
        if next(calls):
            raise SlotError(slot=0, problem="refused here")
        apply(table, step)

    return apply_once


def _broken_run(*_: object) -> None:
    raise ZeroDivisionError
