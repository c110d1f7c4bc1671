"""Responses of an HTTP API, also of other servers, as a load test handles them."""

import httpx
import pytest

from runtime.errors import InvalidRequestError
from stagemesh.bench.callers import ApiTarget, HttpCaller, connect


def caller_of(answer: httpx.Response) -> HttpCaller:
    """A caller of an API that answers everything with `answer`."""
    transport = httpx.MockTransport(lambda request: answer)
    http = httpx.AsyncClient(base_url="http://API", transport=transport)
    return HttpCaller(http, ignore_eos=False)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(404, text="not found"), "http://api/v1/models: HTTP status 404"),
        (httpx.Response(500, json={"detail": "broken"}), "HTTP status 500"),
        (httpx.Response(500, json=["broken"]), "HTTP status 500"),
        (httpx.Response(400, json={"error": "broken"}), "HTTP status 400"),
        (httpx.Response(400, json={"error": {"message": "no such model"}}), "no such model"),
        (httpx.Response(200, text="<html>"), "the response is not a JSON object"),
        (httpx.Response(200, json=[]), "the response is not a JSON object"),
        (httpx.Response(200, json={"data": []}), "lists no model"),
        (httpx.Response(200, json={}), "lists no model"),
    ],
)
async def test_model_of_an_api_without_a_model_list_raises_a_description(
    answer: httpx.Response, message: str
) -> None:
    caller = caller_of(answer)
    async with caller.http:
        with pytest.raises(ValueError, match=message):
            await caller.model()


@pytest.mark.parametrize("api", ["grpc", "http"])
async def test_connect_with_an_impossible_key_raises_before_a_connection(api: str) -> None:
    address = ApiTarget(api, "127.0.0.1:1", "cl\N{LATIN SMALL LETTER E WITH ACUTE}", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="invalid characters"):
        async with connect(address, 1.0, ignore_eos=False):
            pass
