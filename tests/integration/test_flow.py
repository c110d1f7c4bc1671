"""Back-pressure from a slow stage to the clients, in real processes: nothing fills up."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import psutil
import pytest

from stagemesh import Client, GenerationRequest, MeshState, TokenIds
from tests.integration.processes import Mesh, serving
from tests.integration.tiny_chat import MODEL_NAME, make_tiny_chat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NUM_REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS = 40, 1500, 4
# Wide, so that an activation is large beside what else a process holds: 8 MiB for a full step.
HIDDEN_SIZE, STEP_TOKENS = 4096, 512
MAX_SEQUENCES, STEPS_IN_FLIGHT = 6, 4
# The times of the whole model, of which each stage has its part of the layers, and what ten times
# that is for the last stage: 0.1 s for a full step.
PACE = {
    "linear": {"fixed": 0.004, "per_token": 4e-5},
    "num_kv_blocks": 4096,
    "changes": [{"stage": 1, "after_seconds": 0, "factor": 10}],
}
# Of what passes in the load's second half, which is more than ten times as much.
MAX_GROWTH_BYTES = 24 * 2**20


@dataclass(slots=True)
class Peaks:
    """The most memory that each process was seen with, by its id."""

    rss_bytes: dict[int, int] = field(default_factory=dict)

    def look(self, processes: list[psutil.Process]) -> None:
        """At all of them, now."""
        for process in processes:
            rss_bytes = process.memory_info().rss
            self.rss_bytes[process.pid] = max(rss_bytes, self.rss_bytes.get(process.pid, 0))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two stages that compute nothing, the last ten times as slow, with a wide model's frames."""
    folder = tmp_path_factory.mktemp("slow")
    model = make_tiny_chat(folder / MODEL_NAME).model.folder
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": HIDDEN_SIZE}))
    pace = folder / "pace.json"
    pace.write_text(json.dumps(PACE))
    options = (
        *("--pp", "2", "--paced", str(pace), "--prefix-cache", "off"),
        *("--max-step-tokens", str(STEP_TOKENS), "--max-sequences", str(MAX_SEQUENCES)),
        *("--steps-in-flight", str(STEPS_IN_FLIGHT)),
    )
    with serving(str(model), *options) as mesh:
        yield mesh
        mesh.stop()


def ask(mesh: Mesh, number: int) -> int:
    """One prompt of its own; how many tokens came."""
    prompt = tuple(3 + (number + 7 * position) % 310 for position in range(PROMPT_TOKENS))
    request = GenerationRequest(
        prompts=(TokenIds(prompt),), max_tokens=ANSWER_TOKENS, ignore_eos=True
    )
    return len(mesh.ask(request, timeout_seconds=150.0).token_ids())


def check_bounds(state: MeshState, num_left: int) -> None:
    """No queue that the coordinator knows of is beyond its bound."""
    replica = state.replicas[0]
    assert replica.num_steps_in_flight <= STEPS_IN_FLIGHT
    assert state.num_running <= replica.num_slots_used <= MAX_SEQUENCES
    assert state.num_running + state.num_waiting <= num_left
    assert replica.num_kv_blocks_used <= replica.num_kv_blocks


def test_stage_slowed_tenfold_fills_no_queue_and_no_memory(
    slow: Mesh, record_property: Callable[[str, object], None]
) -> None:
    """Case 20 (exo#1726): queues filled up and messages were dropped."""
    processes = [*slow.command.descendants()]
    first_half, second_half = Peaks(), Peaks()
    with ThreadPoolExecutor(NUM_REQUESTS) as threads, Client(slow.target) as client:
        asked = [threads.submit(ask, slow, number) for number in range(NUM_REQUESTS)]
        middle = None
        for num_done, each in enumerate(as_completed(asked), 1):
            assert each.result() == ANSWER_TOKENS
            state = client.state()
            check_bounds(state, NUM_REQUESTS - num_done)
            is_late = 2 * num_done > NUM_REQUESTS
            (second_half if is_late else first_half).look(processes)
            if not is_late:
                middle = state
    assert middle is not None
    since = state.replicas[0].since(middle.replicas[0])
    seconds = state.uptime_seconds - middle.uptime_seconds
    # The slow stage had no rest: it was what everything waited for.
    assert since.stages[1].compute_seconds > 0.7 * seconds
    # By Little's law, how many steps waited there on average.
    assert since.stages[1].queue_seconds / seconds <= STEPS_IN_FLIGHT
    assert since.stages[0].num_bytes_sent > 10 * MAX_GROWTH_BYTES
    growth = {pid: second_half.rss_bytes[pid] - peak for pid, peak in first_half.rss_bytes.items()}
    assert len(growth) == 3
    record_property("memory_growth_bytes", max(growth.values()))
    assert max(growth.values()) < MAX_GROWTH_BYTES, growth
    slow.assert_idle()
