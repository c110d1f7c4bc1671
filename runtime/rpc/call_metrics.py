"""Counts a server's gRPC calls: those that run, and the status of each that ended."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
import grpc.aio

from runtime.metrics.declarations import ProcessMetrics

Context = grpc.aio.ServicerContext[Any, Any]
CallCounter = Callable[[str, Context], AbstractContextManager[None]]
"""Makes a context manager that spans one call of the method."""


def count_calls(metrics: ProcessMetrics) -> CallCounter:
    """Makes the counter for `make_server`; counts methods of the server's services only."""

    @contextmanager
    def counting(method: str, context: Context) -> Iterator[None]:
        running = metrics.grpc_calls_running.labels(method)
        running.inc()
        code = ""
        try:
            yield
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED.name
            raise
        finally:
            running.dec()
            metrics.grpc_calls.labels(method, code or _code(context)).inc()

    return counting


def _code(context: Context) -> str:
    """The status that a handler has set; 0 and None are success."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == (code or 0)), str(code))
