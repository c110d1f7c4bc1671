"""Steps through workers over real streams: results, and replaced epochs."""

import grpc
import grpc.aio
import pytest
import torch

from protos import stage_pb2
from runtime.protocol.step import Step
from tests.stage_worker.live_workers import (
    PROMPT,
    coordinator_frame,
    live_workers,
    load_pipeline,
    next_result,
    open_pipeline,
    prefill,
    stream_error,
)
from tests.tiny_models import TinyModel, make_tiny_llama


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa")


async def test_steps_through_two_stages_sample_the_reference_token(tiny_model: TinyModel) -> None:
    async with live_workers(2) as workers:
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        first, last = (worker.results(epoch) for worker in workers)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, prefill()))

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
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        first, last = (worker.results(epoch) for worker in workers)
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, prefill()))
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
        await load_pipeline(workers, tiny_model.folder)
        epoch = await open_pipeline(workers, counter=1)
        stream = workers[0].forward()
        for number in range(2):
            await stream.write(coordinator_frame(epoch, Step(number)))
            await stream.read()

        results = workers[0].results(epoch)

        assert [(await next_result(results)).step for _ in range(2)] == [0, 1]


async def test_open_epoch_replaces_a_running_one(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        old = await open_pipeline(workers, counter=1)
        old_results, old_stream = workers[0].results(old), workers[0].forward()
        await old_stream.write(coordinator_frame(old, prefill()))
        assert len((await next_result(old_results)).sampled) == 1

        new = await open_pipeline(workers, counter=2)

        assert await old_results.read() is grpc.aio.EOF  # ended, not failed
        assert (await stream_error(old_stream))[1] == "epoch_ended"
        assert (await workers[0].state()).num_kv_blocks_used == 0
        stream, results = workers[0].forward(), workers[0].results(new)
        await stream.write(coordinator_frame(new, prefill()))
        assert len((await next_result(results)).sampled) == 1


async def test_stream_of_a_stale_epoch_fails_alone(tiny_model: TinyModel) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        old = await open_pipeline(workers, counter=1)
        epoch = await open_pipeline(workers, counter=2)
        straggler = workers[0].forward()
        await straggler.write(coordinator_frame(old, Step(0)))

        assert await stream_error(straggler) == (grpc.StatusCode.FAILED_PRECONDITION, "stale_epoch")
        results, stream = workers[0].results(epoch), workers[0].forward()
        await stream.write(coordinator_frame(epoch, Step(0)))
        assert (await next_result(results)).step == 0
        with pytest.raises(grpc.aio.AioRpcError, match="expected epoch coordinator/2"):
            await workers[0].results(old).read()


async def test_forward_without_an_epoch_is_refused() -> None:
    async with live_workers(1) as (worker,):
        assert await stream_error(worker.forward()) == (grpc.StatusCode.UNAVAILABLE, "epoch_ended")
