"""The page at /: the files of page/, as they are, under a policy that lets nothing else in."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from server.errors import ApiError, cut
from server.state import ServerState

_FOLDER = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = {
    file.name: (file.read_bytes(), _TYPES[file.suffix])
    for file in sorted(_FOLDER.iterdir())
    if file.suffix in _TYPES
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def page(_state: ServerState, request: Request) -> Response:
    """Answer with the page, or with the one of its files that the path names."""
    name = request.path_params.get("name", "index.html")
    if name not in _FILES:
        raise ApiError(404, f"no file {cut(name)}")
    content, kind = _FILES[name]
    return Response(content, headers=_HEADERS, media_type=kind)
