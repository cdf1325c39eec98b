"""One process of a server that has several: `python -m tensorpost_server.server_process`, started by the supervisor."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorpost.values.problems import TensorpostError

from .listener import Listener, address_of
from .setting_errors import read_settings
from .shared.process_group import ProcessGroup
from .shared.shared_folder import SharedFolder

__all__ = ["main"]

_log = logging.getLogger("tensorpost_server.server_process")  # this module is called __main__


def main() -> None:
    """Serve until told to stop.

    The only argument is a JSON object: `folder`, `place` and `processes` of the group; the descriptors `listener` and
    `grpc` (None without gRPC), `ready`, to which a line is written when the process takes connections or cannot, and
    `life`, which the supervisor closes when it ends; `log_level`, and `chosen`, the settings given as options.
    """
    said: dict[str, Any] = json.loads(sys.argv[1])
    ready = said["ready"]
    try:
        _serve(said)
    except TensorpostError as error:
        if not _tell(ready, error.to_problem()):
            _log.critical("%s", error.detail)
        sys.exit(1)
    except Exception as error:
        _tell(ready, {"detail": f"{type(error).__name__}: {error}"})
        raise


def _serve(said: dict[str, Any]) -> None:
    from .http.observability.log_format import begin_log
    from .main import create_app
    from .serving import GuardedApplication, Server, choose_protocol, uvicorn_config

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the application reads its folder at this signal
    settings = read_settings(**said["chosen"])
    begin_log(settings, said["log_level"])
    _allow_descriptors()
    grpc = None if said["grpc"] is None else socket.socket(fileno=said["grpc"])
    folder = SharedFolder(Path(said["folder"]))
    group = ProcessGroup.join(folder.path, said["place"], said["processes"], grpc)
    listener = Listener(settings, socket.socket(fileno=said["listener"]))
    created = create_app(settings, group)
    app = GuardedApplication(created)

    def when_ready() -> None:
        group.set_ready(is_ready=True)
        asyncio.get_running_loop().add_reader(said["life"], server.end_with_supervisor, said["life"])
        _tell(said["ready"], {})

    address = address_of(listener.socket, tls=settings.tls_certificate is not None)
    server = Server(
        uvicorn_config(app, choose_protocol(settings), said["log_level"]), app, address, when_ready, folder.release
    )
    created.state.service.end = server.end
    _log.debug("the process at place %d serves %s", group.place, address)
    server.run_until_stopped(listener)


def _allow_descriptors() -> None:
    """Let this process have as many descriptors as the system allows it, after the settings that depend on them.

    Each held tensor that it maps has one before Python 3.13, beside those of connections.
    """
    import resource  # not there on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says that there is no limit, and has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _tell(descriptor: int, line: dict[str, Any]) -> bool:
    """Write a line for the supervisor; False if it has heard already that the process is ready, or has ended."""
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    main()
