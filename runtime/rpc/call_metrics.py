"""Owns the counting of a server's gRPC calls: those that run, and how each one ended."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
import grpc.aio

from runtime.metrics.declarations import ProcessMetrics

Context = grpc.aio.ServicerContext[Any, Any]
CallCounter = Callable[[str, Context], AbstractContextManager[None]]
"""Entered when a call of the method begins, left when it is over."""


def count_calls(metrics: ProcessMetrics) -> CallCounter:
    """A counter for `rpc.make_server`; only methods that the server has are counted."""

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
    """The status that a handler left behind; 0 and None are success."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == (code or 0)), str(code))
