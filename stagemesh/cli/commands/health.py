"""Implements `stagemesh health`: checks liveness or readiness of one process by grpc.health.v1."""

import sys
from typing import Annotated, Any

import grpc
from cyclopts import Parameter
from cyclopts.validators import Number
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import inference_pb2, stage_pb2
from runtime.rpc.channels import ChannelTls, dial_blocking, error_from_rpc
from runtime.rpc.wrong_endpoint import find_wrong_endpoint
from stagemesh.cli.options.option_types import Dialled, Flag
from stagemesh.cli.options.security import OPERATOR_SECURITY_DEFAULTS, OperatorSecurityOptions
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.launcher.ports import dialable

_ALIVE = ""
# An API is ready when it serves requests, a worker when it is in a mesh. No process has both.
_READY = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
    stage_pb2.DESCRIPTOR.services_by_name["Stage"].full_name,
)


def health(
    address: Dialled | None = None,
    /,
    *,
    ready: Annotated[bool, Flag] = False,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Check the health of an API or of a worker; the exit code is 0 if healthy, otherwise 1.

    Parameters
    ----------
    address
        Address of the API or the worker. [default: 127.0.0.1:50050, or 127.0.0.1:50051 with
        --tls-dir]
    ready
        Check readiness instead of liveness: whether an API serves requests, or a worker is in a
        mesh.
    timeout
        Seconds to wait for an answer.
    """
    address = dialable(address or security.default_target)
    tls = security.channel_tls(None)
    _probe(address, is_readiness=ready, timeout_seconds=timeout, tls=tls)
    sys.stdout.write(f"{address} is {'ready' if ready else 'alive'}\n")


def _probe(
    address: str, *, is_readiness: bool, timeout_seconds: float, tls: ChannelTls | None = None
) -> None:
    """Returns if the API or worker at `address` is healthy; otherwise raises StagemeshRpcError."""
    with dial_blocking(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            status = _check(stub, _READY if is_readiness else (_ALIVE,), timeout_seconds)
        except grpc.RpcError as error:
            call = _call_of(error)
            message = f"{address} does not answer: {error_from_rpc(call)[1]}"
            if (wrong_endpoint := find_wrong_endpoint(call)) is not None:
                message = f"what answers at {address} {wrong_endpoint.value}"
            raise StagemeshRpcError("unreachable", call.code().name, message) from None
    if status is None:
        message = f"{address} is neither an API nor a worker of stagemesh"
        raise StagemeshRpcError("unknown_service", "NOT_FOUND", message)
    if status != health_pb2.HealthCheckResponse.SERVING:
        what = "is alive but not ready" if is_readiness else "is shutting down"
        raise StagemeshRpcError("not_ready", "UNAVAILABLE", f"{address} {what}")


def _check(stub: Any, services: tuple[str, ...], timeout_seconds: float) -> int | None:
    """The status of the first of `services` that the server has; None if it has none."""
    for service in services:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            return int(stub.Check(request, timeout=timeout_seconds).status)
        except grpc.RpcError as error:
            if _call_of(error).code() is not grpc.StatusCode.NOT_FOUND:
                raise
    return None


def _call_of(error: grpc.RpcError) -> grpc.Call:
    """The failed call, which blocking stubs raise as the error."""
    assert isinstance(error, grpc.Call)
    return error
