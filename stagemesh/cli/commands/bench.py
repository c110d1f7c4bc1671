"""Implements `stagemesh bench serve`: a load test of a running mesh."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from stagemesh.cli import examples
from stagemesh.cli.options.option_types import (
    ApiKey,
    Dialled,
    Flag,
    NewFile,
    NotNegative,
    Picture,
    Positive,
    between,
)
from stagemesh.cli.options.security import CLIENT_SECURITY_DEFAULTS, ClientSecurityOptions
from stagemesh.client.async_client import DEFAULT_TARGET
from stagemesh.display.progress import ProgressView
from stagemesh.units import parse_targets

DEFAULT_HTTP = "127.0.0.1:8000"

Above0 = Annotated[float, Parameter(validator=Number(gt=0, lte=1e6))]
FileParameter = Parameter(metavar="FILE", show_default=False)
File = Annotated[Path | None, FileParameter]
TargetList = Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)]

bench = App(name="bench", help="Measure a running mesh.", sort_key=9)


# Longer than other functions: its parameters and their descriptions are the command's options.
@bench.command(help_epilogue=examples.BENCH)
def serve(
    *,
    api: Literal["grpc", "http"] = "grpc",
    target: Dialled | None = None,
    api_key: ApiKey = None,
    security: ClientSecurityOptions = CLIENT_SECURITY_DEFAULTS,
    num_prompts: Positive = 100,
    request_rate: Above0 | None = None,
    burstiness: Above0 = 1.0,
    max_concurrency: Positive | None = None,
    num_warmups: NotNegative = 0,
    input_len: Positive = 128,
    output_len: Positive = 64,
    prompts: File = None,
    ignore_eos: Annotated[bool, Flag] = False,
    goodput: Annotated[TargetList, Parameter(show_default=False)] = (),
    seed: Annotated[int, between(0, 2**31)] = 0,
    timeout: Above0 = 600.0,
    save: Annotated[NewFile, FileParameter] = None,
    plot: Annotated[Picture, FileParameter] = None,
) -> None:
    """Send many requests to a running mesh, and report latency and throughput at the client.

    Requests are streamed with greedy sampling. Prompts are random tokens unless --prompts names a
    file. The exit code is 1 if any request failed.

    Parameters
    ----------
    api
        API to send requests to; http is /v1/completions, which other servers also have.
    target
        Address of the API. [default: 127.0.0.1:50050, or 127.0.0.1:8000 for http]
    api_key
        API key. Prefer its environment variable: other users of this machine can read command
        lines.
    num_prompts
        Number of requests.
    request_rate
        Requests per second. [default: all at once]
    burstiness
        Shape of the gamma distribution of intervals: 1 is Poisson, less makes bursts.
    max_concurrency
        Most concurrent requests. [default: no limit]
    num_warmups
        Number of sequential requests before the measurement.
    input_len
        Tokens of each random prompt.
    output_len
        Most tokens of each answer.
    prompts
        JSONL file of {"prompt": TEXT}, optionally with "max_tokens", which overrides --output-len.
    ignore_eos
        Continue after the end-of-sequence token, so that every answer has --output-len tokens.
    goodput
        Latency targets in milliseconds, such as ttft:500 tpot:50 e2el:5000; goodput counts the
        requests that meet all of them.
    seed
        Random seed of prompts and intervals.
    timeout
        Seconds after which a request is cancelled.
    save
        Write the results, also of every request, to a JSON file.
    plot
        Write a PNG file with the latency distributions.
    """
    # Imported here, because other commands need no HTTP client.
    from stagemesh.bench.session import LoadTest, report

    test = LoadTest(
        api=api,
        target=target or (DEFAULT_TARGET if api == "grpc" else DEFAULT_HTTP),
        api_key=api_key,
        tls_ca=security.tls_ca,
        num_prompts=num_prompts,
        request_rate=request_rate,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        num_warmups=num_warmups,
        input_len=input_len,
        output_len=output_len,
        prompts=prompts,
        ignore_eos=ignore_eos,
        targets=parse_targets(goodput),
        seed=seed,
        timeout_seconds=timeout,
    )
    with ProgressView(Console(stderr=True)) as progress:
        show = partial(progress.show_amount, "requests", total=num_prompts)
        load, result = asyncio.run(test.run(show))
    report(load, result, save, plot)
