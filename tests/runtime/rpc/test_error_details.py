"""Rich errors, read back as any client of gRPC reads them."""

import pytest
from google.rpc.code_pb2 import INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from runtime.errors import (
    InvalidRequestError,
    QueueFullError,
    StagemeshError,
    UnknownModelError,
)
from runtime.rpc.error_details import error_status, short_message


def read(error: StagemeshError) -> tuple[Status, list[ErrorInfo | BadRequest | RetryInfo]]:
    status = Status.FromString(error_status(error, short_message(error)))
    details: list[ErrorInfo | BadRequest | RetryInfo] = []
    for packed in status.details:
        for kind in (ErrorInfo, BadRequest, RetryInfo):
            if packed.TypeName() == kind.DESCRIPTOR.full_name:
                packed.Unpack(detail := kind())
                details.append(detail)
    return status, details


def test_status_of_a_bad_field_names_it() -> None:
    status, details = read(InvalidRequestError(field="top_p", problem="is 7"))
    info = ErrorInfo(reason="INVALID_REQUEST", domain="stagemesh")
    violation = BadRequest.FieldViolation(field="top_p", description="is 7")
    assert (status.code, status.message) == (INVALID_ARGUMENT, "top_p: is 7")
    assert details == [info, BadRequest(field_violations=[violation])]


def test_status_of_a_full_queue_has_retry_info() -> None:
    status, (info, retry) = read(QueueFullError(num_waiting=3, limit=2, wait_seconds=4))
    assert status.code == RESOURCE_EXHAUSTED
    assert isinstance(info, ErrorInfo)
    assert dict(info.metadata) == {"num_waiting": "3", "limit": "2", "wait_seconds": "4"}
    assert isinstance(retry, RetryInfo)
    assert retry.retry_delay.seconds == 4


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 100_000])
def test_status_of_a_huge_error_fits_a_trailer(text: str) -> None:
    error = UnknownModelError(model=text, served=text)
    status, _ = read(error)
    assert status.code == NOT_FOUND
    assert len(error_status(error, short_message(error))) < 5_000
