"""The server's side of the commands."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

from ..values.extras import install_command


def server_commands() -> ModuleType:
    """The server's module of commands. By name, because the SDK does without the server's code.

    Raises:
        ModuleNotFoundError: the server, or a package that it needs, is not installed; the message names the extra.
    """
    try:
        for package in ("fastapi", "uvicorn"):  # which the module imports where a command needs them
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return importlib.import_module("tensorpost_server.commands")
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in ("tensorpost", "tensorpost_server"):
            raise  # a file of ours is gone: no extra brings it back
        raise ModuleNotFoundError(
            f"this command needs the server, and {package} is not installed: {install_command('server')}",
            name=missing.name,
        ) from None
