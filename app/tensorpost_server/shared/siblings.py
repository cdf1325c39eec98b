"""Questions of one process of a server to the others, each by a connection to a Unix socket in their folder."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .shared_folder import socket_path

CHANGE_SECONDS, ANSWER_SECONDS = 30.0, 5.0
"""How long another process may take to do what it is asked to, and for an answer that says something of it."""

_log = logging.getLogger(__name__)

Answers = Mapping[str, Callable[..., Awaitable[Any]]]
"""The questions that a process answers, by name; arguments and answers are JSON values."""


class Siblings:
    """The other processes of a server.

    Args:
        folder: where the sockets are; None if there is one process.
        place: which of the processes this one is.
        places: how many there may be.
    """

    def __init__(self, folder: Path | None, place: int, places: int = 0) -> None:
        self._folder, self._place, self._places = folder, place, places
        self._server: asyncio.Server | None = None

    async def open(self, answers: Answers) -> None:
        """Answer the others from now on."""
        if self._folder is None:
            return
        path = socket_path(self._folder, self._place)
        path.unlink(missing_ok=True)  # of a process that was killed

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    question, *arguments = json.loads(await reader.read())
                writer.write(json.dumps(await answers[question](*arguments)).encode())
                writer.write_eof()
                await writer.drain()
            except OSError:
                pass  # whoever asked has gone
            except Exception:  # noqa: BLE001 # of any question; the process goes on, and the log says what it was
                _log.exception("the question of another process was not answered")
            finally:
                writer.close()

        self._server = await asyncio.start_unix_server(answer, path)

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None and self._folder is not None:
            self._server.close()
            socket_path(self._folder, self._place).unlink(missing_ok=True)

    async def ask(self, question: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> list[Any]:
        """Ask all others at once.

        Args:
            question: which one.
            arguments: JSON values.
            seconds: how long to wait for an answer.

        Returns:
            The answers, without those of processes that have ended or take too long.
        """
        if self._folder is None:
            return []
        others = [socket_path(self._folder, place) for place in range(self._places) if place != self._place]
        answers = await asyncio.gather(*[self._ask(path, seconds, question, *arguments) for path in others])
        return [answer for answer in answers if answer is not None]

    async def _ask(self, path: Path, seconds: float, question: str, *arguments: Any) -> Any:
        with suppress(FileNotFoundError, ConnectionError):
            try:
                async with asyncio.timeout(seconds):
                    reader, writer = await asyncio.open_unix_connection(path)
                    try:
                        writer.write(json.dumps([question, *arguments]).encode())
                        writer.write_eof()
                        return json.loads(await reader.read() or "null")
                    finally:
                        writer.close()
            except TimeoutError:
                _log.warning("%s did not answer %r within %g s", path.stem, question, seconds)
        return None
