"""Owns the page at `/` that shows the mesh live; its files are in `live/`, none is from outside.

The page asks `/state` once a second, and talks to the model through `/v1/chat/completions`.
"""

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from runtime.errors import UnknownRouteError

_FOLDER: Final = Path(__file__).parent / "live"
_FILES: Final = frozenset(path.name for path in _FOLDER.iterdir() if path.suffix != ".html")
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Browsers ask again each time, so that a new build's page is never mixed with an old one's.
    "cache-control": "no-cache",
}


def live_routes() -> list[Route]:
    """The page and its files."""
    return [Route("/", _page), Route("/live/{name}", _file)]


async def _page(request: Request) -> Response:
    return FileResponse(_FOLDER / "index.html", headers=_HEADERS)


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        raise UnknownRouteError(path=request.url.path[:200])
    return FileResponse(_FOLDER / name, headers=_HEADERS)
