"""Several replicas in real processes: the tokens of one process, also over a death."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from stagemesh import Client, GenerationRequest, TokenIds
from tests.conftest import MESH_OPTIONS
from tests.integration.processes import Mesh, serving, until
from tests.integration.tiny_chat import TinyChat, assert_greedy

pytestmark = pytest.mark.integration

PROMPTS = tuple((5 + n, 6, 7, 8 + n) for n in range(8))


@pytest.fixture
def replicas(tiny_chat: TinyChat) -> Iterator[Mesh]:
    """Two replicas of two stages."""
    with serving(str(tiny_chat.model.folder), "--pp", "2", "--dp", "2", *MESH_OPTIONS) as mesh:
        yield mesh


def test_pipelines_side_by_side_give_the_tokens_of_one_process_also_when_one_dies(
    replicas: Mesh, tiny_chat: TinyChat
) -> None:
    def ask(prompt: tuple[int, ...]) -> tuple[int, ...]:
        request = GenerationRequest(prompts=(TokenIds(prompt),), max_tokens=300, ignore_eos=True)
        return replicas.ask(request).token_ids()

    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        running = [threads.submit(ask, prompt) for prompt in PROMPTS]
        with Client(replicas.target) as client:
            state = until(
                client, lambda state: all(each.num_slots_used > 0 for each in state.replicas)
            )
            victim = state.replicas[0].stages[1].worker_ids[0]
            psutil.Process(next(w.pid for w in state.workers if w.worker_id == victim)).kill()
        answers = [each.result() for each in running]
    for prompt, tokens in zip(PROMPTS, answers, strict=True):
        assert len(tokens) == 300
        assert_greedy(tiny_chat.model, prompt, tokens)
    replicas.assert_idle()
    replicas.stop()
