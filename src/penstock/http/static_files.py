"""Serves the files of the console: HTML, style sheets, scripts and their licences, from inside the package."""

from __future__ import annotations

from pkgutil import get_data

from penstock.http.messages import NOT_FOUND, Response

INDEX = "/console/index.html"
PREFIX = "/console/"
KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
#: Letters of file names. No name begins with a dot, so that no path leads out of the directory.
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def is_static(path: str) -> bool:
    return path.startswith(PREFIX) and path != INDEX


def static_file(path: str) -> Response:
    """Returns a file of the console. Reads the file at each request: it is small and seldom requested."""
    parts = path.removeprefix(PREFIX).split("/")
    kind = KINDS.get(path.rpartition(".")[2])
    named = all(part and part[0] != "." and _LETTERS.issuperset(part) for part in parts)
    if not path.startswith(PREFIX) or not named or kind is None:
        return NOT_FOUND
    try:
        content = get_data("penstock.http", f"static/{'/'.join(parts)}")
    except OSError:
        return NOT_FOUND
    return NOT_FOUND if content is None else Response(200, kind, content, cache="no-cache")
