"""The API key of a client: from an argument, the environment or a file."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import urlsplit

from ..network.options import URL_VARIABLE
from ..values.problems import InvalidParameter

KEY_VARIABLE, KEY_FILE_VARIABLE = "TENSORPOST_API_KEY", "TENSORPOST_API_KEY_FILE"
KEY_ADVICE = "pass api_key= to the client, or set the variable TENSORPOST_API_KEY"
"""What the SDK advises where the server says `Unauthenticated.SEND_KEY`."""
_KEY = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1
_MOST_FILE_BYTES = 4096
_PATH_STARTS, _PATH_ENDS = ("/", "./", "../", "~/"), (".key", ".pem", ".txt", ".json")


def find_api_key(api_key: object, base_url: str) -> str | None:
    """The API key for a server; None if there is none.

    No message shows a key, or a part of it.

    Args:
        api_key: the key; a `Path` of a file with it; an empty text for none at all; None to look at the variable
            TENSORPOST_API_KEY, then at TENSORPOST_API_KEY_FILE, a path. If TENSORPOST_URL is set, these two belong to
            the server there, and are not for servers of another origin.
        base_url: the server's base URL, which decides whether the variables hold for it.

    Raises:
        InvalidParameter: not a key, or a file that cannot be read or that others than its owner may read or write.
    """
    if isinstance(api_key, Path):
        return _read_file(api_key)
    if api_key is not None:
        if not isinstance(api_key, str):
            raise InvalidParameter(f"api_key is of type {type(api_key).__name__}; it must be a text, a Path or None")
        _refuse_path(api_key, "api_key", "pass a pathlib.Path of it instead of a text")
        return _checked(api_key, "api_key") if api_key else None
    home = os.environ.get(URL_VARIABLE)
    if home and _origin(home) != _origin(base_url):
        return None
    if key := os.environ.get(KEY_VARIABLE):
        _refuse_path(key, KEY_VARIABLE, f"set {KEY_FILE_VARIABLE} instead")
        return _checked(key, KEY_VARIABLE)
    file = os.environ.get(KEY_FILE_VARIABLE)
    return _read_file(Path(file)) if file else None


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            # Windows has no such modes: a file there is protected by its folder.
            if os.name == "posix" and mode & 0o077:
                raise InvalidParameter(
                    f"the file {path} with the API key has mode {mode:04o}, so others may read or change it; "
                    f"chmod 600 {path}"
                )
            text = file.read(_MOST_FILE_BYTES)
    except OSError as error:
        raise InvalidParameter(f"the file {path} with the API key cannot be read: {error.strerror}") from None
    return _checked(text.decode("latin-1").strip(), f"the file {path}")


def _refuse_path(key: str, where: str, instead: str) -> None:
    """Refuse a text that is the path of a file, or is written like one."""
    if key.startswith(_PATH_STARTS) or key.lower().endswith(_PATH_ENDS):
        raise InvalidParameter(f"{where} looks like the path of a file, and it must be the key; for a file {instead}")


def _checked(key: str, where: str) -> str:
    if not _KEY.fullmatch(key):
        raise InvalidParameter(f"{where} holds no API key, which is one word of letters, digits and -._~+/")
    return key


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port (RFC 6454, section 4)."""
    try:
        parts = urlsplit(url.removeprefix("dns+"))
        port = parts.port
    except ValueError:
        return url, None, None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)
