"""Owns the question whether a process of a mesh is alive, or ready for work.

It asks grpc.health.v1, as any other prober of APIs and workers can.
"""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import inference_pb2, stage_pb2
from runtime.rpc.channels import ChannelTls, dial_blocking, error_from_rpc
from runtime.rpc.wrong_endpoint import find_wrong_endpoint
from stagemesh.client.rpc_error import StagemeshRpcError

_ALIVE = ""
# An API serves requests; a worker is in a mesh. No process has both services.
_READY = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
    stage_pb2.DESCRIPTOR.services_by_name["Stage"].full_name,
)


def probe(
    address: str, *, is_ready_asked: bool, timeout_seconds: float, tls: ChannelTls | None = None
) -> None:
    """Returns if the API or worker at `address` is well; StagemeshRpcError says why it is not."""
    with dial_blocking(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            status = _check(stub, _READY if is_ready_asked else (_ALIVE,), timeout_seconds)
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
        what = "is alive but not ready" if is_ready_asked else "is shutting down"
        raise StagemeshRpcError("not_ready", "UNAVAILABLE", f"{address} {what}")


def _check(stub: Any, services: tuple[str, ...], timeout_seconds: float) -> int | None:
    """The status of the first of `services` that there is."""
    for service in services:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            return int(stub.Check(request, timeout=timeout_seconds).status)
        except grpc.RpcError as error:
            if _call_of(error).code() is not grpc.StatusCode.NOT_FOUND:
                raise
    return None


def _call_of(error: grpc.RpcError) -> grpc.Call:
    """The failed call itself, which gRPC's blocking stubs raise as the error."""
    assert isinstance(error, grpc.Call)
    return error
