"""Loading, the canary, and epochs that a worker refuses to open."""

import asyncio
import threading
from pathlib import Path

import grpc.aio
import pytest

from protos import stage_pb2
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import RequestCancelledError
from runtime.rpc import channels
from stage_worker import worker as worker_module
from stage_worker.device.progress import ProgressFn
from stage_worker.loading.loading import LoadedStage
from tests.stage_worker.live_workers import (
    PROMPT,
    WAIT_SECONDS,
    live_workers,
    load_pipeline,
    make_assignments,
    make_opening,
)
from tests.tiny_models import TinyModel, make_tiny_llama


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "tied_gqa")


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


async def test_load_and_record_canary_read_the_headers_once_each(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    open_checkpoint = Checkpoint.open

    def count(folder: Path) -> Checkpoint:
        opened.append(folder)
        return open_checkpoint(folder)

    monkeypatch.setattr(Checkpoint, "open", count)
    async with live_workers(1) as (worker,):
        await worker.load(*make_assignments(tiny_model.folder, (4,)))
        assert len(opened) == 1
        request = stage_pb2.RecordCanaryRequest(
            model=str(tiny_model.folder), token_ids=PROMPT, num_logprobs=3
        )
        async for _ in worker.stub.RecordCanary(request):
            pass
        assert len(opened) == 2


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"weights_fingerprint": "beef"}, "fingerprint_mismatch", "beef"),
        ({"num_layers": 3}, "assignment", r"layers \[0, 3\)"),
        ({"first_layer": 1}, "assignment", r"layers \[1, 5\)"),
        ({"tp_size": 3}, "too_many_ranks", "3 ranks a stage for 2 key/value heads"),
        ({"tp_size": 0}, "invalid_request", "tp_size"),
        ({"rank": 1}, "assignment", "a rank below 1, got rank 1"),
        ({"stage": 1}, "assignment", "stage 1"),
        ({"dtype": 0}, "invalid_request", "dtype"),
        ({"block_size": 0}, "invalid_request", "block_size"),
        ({"model": "/nowhere"}, "model_not_found", "/nowhere"),
        ({"max_model_len": 2**32 - 1}, "assignment", "max_model_len up to 4096"),
        ({"kv_memory_bytes": 2**64 - 1}, "not_enough_memory", "the KV cache needs"),
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

        assert channels.error_from_rpc(caught.value)[0] == code
        assert (await worker.state()).state == stage_pb2.WORKER_STATE_EMPTY


async def test_load_refused_keeps_the_running_epoch(tiny_model: TinyModel) -> None:
    async with live_workers(1) as (worker,):
        await load_pipeline([worker], tiny_model.folder)
        await worker.open_epoch(make_opening(1))
        before = await worker.state()
        for changes in ({"model": "/nowhere"}, {"num_layers": 3}, {"weights_fingerprint": "beef"}):
            (assignment,) = make_assignments(tiny_model.folder, (4,))
            for name, value in changes.items():
                setattr(assignment, name, value)
            with pytest.raises(grpc.aio.AioRpcError):
                await worker.load(assignment)
        after = await worker.state()
        assert after.state == stage_pb2.WORKER_STATE_SERVING
        assert (after.epoch, after.weights_bytes) == (before.epoch, before.weights_bytes)


async def test_load_client_gone_stops_loading(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as (worker,):
        (assignment,) = make_assignments(tiny_model.folder, (4,))
        call = worker.stub.Load(stage_pb2.LoadRequest(assignment=assignment))
        call.cancel()

        await worker.load(assignment)  # the next one is not in its way

        assert (await worker.state()).state == stage_pb2.WORKER_STATE_LOADED


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"window": 1}, "invalid_request"),
        ({"window": 2**32 - 1}, "invalid_request"),
        ({"max_sequences": 2**32 - 1}, "not_enough_memory"),
        ({"max_sequences": 0}, "invalid_request"),
        ({"num_kv_blocks": 10**6}, "never_fits"),
        ({"stage": 1}, "assignment"),
        ({"replica": 1}, "assignment"),
    ],
)
async def test_open_epoch_that_violates_the_plan_is_refused(
    tiny_model: TinyModel, changes: dict[str, int], code: str
) -> None:
    async with live_workers(1) as workers:
        await load_pipeline(workers, tiny_model.folder)
        request = make_opening(1)
        for name, value in changes.items():
            setattr(request, name, value)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await workers[0].open_epoch(request)

        assert channels.error_from_rpc(caught.value)[0] == code


async def test_open_epoch_without_weights_stale_or_unreachable_next_is_refused(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as workers, live_workers(1) as others:
        with pytest.raises(grpc.aio.AioRpcError, match="nothing is loaded"):
            await workers[0].open_epoch(make_opening(1))
        first, _ = make_assignments(tiny_model.folder, (3, 1))
        await workers[0].load(first)
        with pytest.raises(grpc.aio.AioRpcError, match="no open epoch"):
            await workers[0].open_epoch(make_opening(1, next_addresses=[others[0].address]))
        with pytest.raises(grpc.aio.AioRpcError, match="later than coordinator/1"):
            await workers[0].open_epoch(make_opening(1, next_addresses=[others[0].address]))
        with pytest.raises(grpc.aio.AioRpcError, match="next: needs 1"):
            await workers[0].open_epoch(make_opening(2))


async def test_record_canary_streams_layers_then_the_reference(tiny_model: TinyModel) -> None:
    async with live_workers(1) as (worker,):
        request = stage_pb2.RecordCanaryRequest(
            model=str(tiny_model.folder), token_ids=PROMPT, num_logprobs=4
        )

        *progress, last = [message async for message in worker.stub.RecordCanary(request)]

        assert [m.done_layers for m in progress] == sorted(m.done_layers for m in progress)
        assert last.top_ids == tiny_model.logprobs(PROMPT)[-1].topk(4).indices.tolist()


async def test_record_canary_without_tokens_or_with_too_many_is_refused(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(1) as (worker,):
        request = stage_pb2.RecordCanaryRequest(model=str(tiny_model.folder))

        with pytest.raises(grpc.aio.AioRpcError, match="token_ids: must not be empty"):
            await worker.stub.RecordCanary(request).read()
        request.token_ids.extend([1] * 2000)
        with pytest.raises(grpc.aio.AioRpcError, match="2000 given, at most 1024"):
            await worker.stub.RecordCanary(request).read()


async def test_load_while_another_loads_is_refused_until_its_client_leaves(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, stopped = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow_load(_: object, __: object, progress: ProgressFn) -> LoadedStage:
        progress(0, 1)
        assert go_on.wait(WAIT_SECONDS)
        try:
            progress(1, 1)
        except RequestCancelledError:
            loop.call_soon_threadsafe(stopped.set)
            raise
        raise AssertionError("went on loading for nobody")

    (assignment,) = make_assignments(tiny_model.folder, (4,))
    async with live_workers(1) as (worker,):
        with monkeypatch.context() as patch:
            patch.setattr(worker_module, "load_stage", slow_load)
            call = worker.stub.Load(stage_pb2.LoadRequest(assignment=assignment))
            await call.read()

            assert (await worker.state()).state == stage_pb2.WORKER_STATE_LOADING
            with pytest.raises(grpc.aio.AioRpcError, match="loading"):
                await worker.load(assignment)
            call.cancel()
            while (await worker.state()).state == stage_pb2.WORKER_STATE_LOADING:
                pass
            go_on.set()
            await stopped.wait()

        await worker.load(assignment)
        assert (await worker.state()).state == stage_pb2.WORKER_STATE_LOADED


async def test_unload_frees_the_weights_and_ends_the_epoch(tiny_model: TinyModel) -> None:
    async with live_workers(1) as (worker,):
        await load_pipeline([worker], tiny_model.folder)
        await worker.open_epoch(make_opening(1))
        assert (await worker.state()).state == stage_pb2.WORKER_STATE_SERVING

        await worker.stub.Unload(stage_pb2.UnloadRequest())

        state = await worker.state()
        assert state.state == stage_pb2.WORKER_STATE_EMPTY
        assert (state.weights_bytes, state.num_kv_blocks) == (0, 0)
