"""Outside clients with environments of their own, offline, against a mesh of real processes.

`make test-clients-heavy` installs them (`scripts/client-tools`) and runs this file.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import Mesh
from tests.integration.tiny_chat import MODEL_NAME, TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
CLIENTS = CACHE / "stagemesh-clients"
RUN_SECONDS = 480
NUM_REQUESTS = 12

CHOICES = ("stage", "token that the client reads", "prompt")
CONTEXTS = ("the pipeline sends the hidden state to the next", "the last stage draws the", "a 世 é")
TASK = """\
task: tiny_likelihood
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


def run(tmp_path: Path, client: str, *command: str, **settings: str) -> None:
    """Runs a client's command to its end, without any network but this mesh."""
    done = subprocess.run(
        (str(CLIENTS / client / "bin" / command[0]), *command[1:]),
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "CUDA_VISIBLE_DEVICES": ""} | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def read_json(folder: Path, pattern: str) -> Any:
    """The one file of that name below `folder`."""
    [path] = folder.rglob(pattern)
    return json.loads(path.read_text())


def log_likelihood(tiny_chat: TinyChat, context: str, choice: str) -> float:
    """What Transformers gives a choice after its context; lm-eval puts a space between."""
    start = len(tiny_chat.tokenizer.encode(context))
    ids = tuple(tiny_chat.tokenizer.encode(f"{context} {choice}"))
    rows = tiny_chat.model.logprobs(ids)
    return sum(float(rows[place - 1][ids[place]]) for place in range(start, len(ids)))


def test_lm_eval_log_likelihoods_are_transformers(
    mesh: Mesh, tiny_chat: TinyChat, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    documents = [{"context": text, "choices": CHOICES, "answer": 0} for text in CONTEXTS]
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "tiny.yaml").write_text(TASK.format(data=data))
    folder = tiny_chat.model.folder
    run(
        tmp_path,
        "lm-eval",
        *("lm-eval", "run", "--model", "local-completions", "--tasks", "tiny_likelihood"),
        *("--include_path", str(tasks), "--output_path", str(tmp_path / "out"), "--log_samples"),
        *("--model_args", f"model={MODEL_NAME}", f"base_url=http://{mesh.http}/v1/completions"),
        *(f"tokenizer={folder}", "tokenizer_backend=huggingface", "max_retries=1"),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
    )
    [path] = (tmp_path / "out").rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sample["doc"]["context"] for sample in samples] == list(CONTEXTS)
    for sample in samples:
        actual = [float(likelihood) for likelihood, _ in sample["filtered_resps"]]
        context = sample["doc"]["context"]
        expected = [log_likelihood(tiny_chat, context, choice) for choice in CHOICES]
        assert actual == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm_synthetic_run_has_no_error(
    path: str, mesh: Mesh, tiny_chat: TinyChat, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    run(
        tmp_path,
        "guidellm",
        *("guidellm", "run", "--disable-console", "--output", f"kind=json,path={report}"),
        "--backend",
        f"kind=openai_http,target=http://{mesh.http},model={MODEL_NAME},request_format={path}",
        *("--tokenizer", f"kind=huggingface_auto,model={tiny_chat.model.folder}"),
        *("--data", "kind=synthetic_text,prompt_tokens=24,output_tokens=8"),
        *("--profile", "kind=concurrent,streams=4"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
    )
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert requests["errored"] == []
    assert len(requests["successful"]) == NUM_REQUESTS
    assert all(request["output_metrics"]["text_tokens"] == 8 for request in requests["successful"])


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_aiperf_synthetic_run_has_no_error(
    kind: str, mesh: Mesh, tiny_chat: TinyChat, tmp_path: Path
) -> None:
    run(
        tmp_path,
        "aiperf",
        *("aiperf", "profile", "--model", MODEL_NAME, "--url", f"http://{mesh.http}"),
        *("--endpoint-type", kind, "--streaming", "--tokenizer", str(tiny_chat.model.folder)),
        *("--request-count", str(NUM_REQUESTS), "--concurrency", "4", "--workers-max", "1"),
        *("--isl", "24", "--isl-stddev", "0", "--osl", "8", "--osl-stddev", "0"),
        *("--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(tmp_path)),
        *("--no-gpu-telemetry", "--no-server-metrics"),
    )
    report = read_json(tmp_path, "profile_export_aiperf.json")
    assert report["request_count"]["avg"] == NUM_REQUESTS
    assert not report.get("error_request_count")
    assert report["error_summary"] == []
