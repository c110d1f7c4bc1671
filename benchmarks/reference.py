"""Runs `transformers.generate` on the benchmark's prompts in a process of its own.

A separate process has its own threads and memory, apart from the mesh's client.
"""

import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchmarks.command import ignore_interrupts

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One batch served once: generated ids by prompt, and its times in seconds from the start."""

    token_ids: tuple[tuple[int, ...], ...]
    first_token_seconds: tuple[float, ...]
    total_seconds: tuple[float, ...]
    wall_seconds: float


class TransformersProcess:
    """A child process with the model in float32, on a GPU if there is one; ends with the block."""

    def __init__(self, folder: Path, num_threads: int) -> None:
        context = get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(child, folder, num_threads), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe.send(None)
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> BatchRun:
        """Greedy tokens for equally long prompts, end-of-sequence ignored."""
        self._pipe.send((prompts, num_tokens))
        run: BatchRun = self._pipe.recv()
        return run


def _serve(pipe: "Connection[Any, Any]", folder: Path, num_threads: int) -> None:
    ignore_interrupts()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    torch.set_num_threads(num_threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.to(device).eval()
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        prompts, num_tokens = job
        pipe.send(_generate(model, torch.tensor(prompts, device=device), num_tokens))


def _generate(model: Any, prompt_ids: Any, num_tokens: int) -> BatchRun:
    from transformers import StoppingCriteria, StoppingCriteriaList

    started = time.perf_counter()
    token_times: list[float] = []

    class Clock(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: object) -> Any:
            token_times.append(time.perf_counter() - started)
            return input_ids.new_zeros(input_ids.shape[0]).bool()

    output = model.generate(
        prompt_ids,
        attention_mask=prompt_ids.new_ones(prompt_ids.shape),
        do_sample=False,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([Clock()]),
    )
    wall_seconds = time.perf_counter() - started
    new_ids = output[:, prompt_ids.shape[1] :].tolist()
    return BatchRun(
        token_ids=tuple(tuple(ids) for ids in new_ids),
        first_token_seconds=(token_times[0],) * len(new_ids),
        total_seconds=(wall_seconds,) * len(new_ids),
        wall_seconds=wall_seconds,
    )
