"""What a load test makes of the answers of an HTTP API, also of one that is not ours."""

import httpx
import pytest

from runtime.errors import InvalidRequestError
from stagemesh.bench.callers import ApiAddress, HttpCaller, connect


def caller_of(answer: httpx.Response) -> HttpCaller:
    """Asks an API that answers everything with `answer`."""
    transport = httpx.MockTransport(lambda request: answer)
    http = httpx.AsyncClient(base_url="http://API", transport=transport)
    return HttpCaller(http, ignore_eos=False)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(404, text="not found"), "http://API/v1/models: HTTP status 404"),
        (httpx.Response(500, json={"detail": "broken"}), "HTTP status 500"),
        (httpx.Response(500, json=["broken"]), "HTTP status 500"),
        (httpx.Response(400, json={"error": "broken"}), "HTTP status 400"),
        (httpx.Response(400, json={"error": {"message": "no such model"}}), "no such model"),
        (httpx.Response(200, text="<html>"), "the answer is no JSON object"),
        (httpx.Response(200, json=[]), "the answer is no JSON object"),
        (httpx.Response(200, json={"data": []}), "lists no model"),
        (httpx.Response(200, json={}), "lists no model"),
    ],
)
async def test_api_that_does_not_say_its_model_is_told_apart(
    answer: httpx.Response, says: str
) -> None:
    caller = caller_of(answer)
    async with caller.http:
        with pytest.raises(ValueError, match=says):
            await caller.model()


@pytest.mark.parametrize("api", ["grpc", "http"])
async def test_key_that_can_be_none_is_refused_before_anybody_is_asked(api: str) -> None:
    address = ApiAddress(api, "127.0.0.1:1", "cl\N{LATIN SMALL LETTER E WITH ACUTE}", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="other characters"):
        async with connect(address, 1.0, ignore_eos=False):
            pass
