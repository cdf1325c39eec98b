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

ANSWER_SECONDS = 30.0
"""How long another process may take for an answer; what it then does not know, it finds out later."""

_MOST_QUESTION_BYTES = 1 << 16
_log = logging.getLogger(__name__)

Answers = Mapping[str, Callable[..., Awaitable[Any]]]
"""The questions that a process answers, by name; arguments and answers are JSON values."""


class Siblings:
    """The other processes of a server.

    Args:
        folder: where the sockets are; None if there is one process.
        place: which of the processes this one is.
    """

    def __init__(self, folder: Path | None, place: int) -> None:
        self._folder, self._place = folder, place
        self._server: asyncio.Server | None = None

    async def open(self, answers: Answers) -> None:
        """Answer the others from now on."""
        if self._folder is None:
            return
        path = socket_path(self._folder, self._place)
        path.unlink(missing_ok=True)  # of a process that was killed

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                question, *arguments = json.loads(await reader.read(_MOST_QUESTION_BYTES))
                writer.write(json.dumps(await answers[question](*arguments)).encode())
                writer.write_eof()
                await writer.drain()
            except OSError:
                pass  # whoever asked has gone
            finally:
                writer.close()

        self._server = await asyncio.start_unix_server(answer, path)

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None and self._folder is not None:
            self._server.close()
            socket_path(self._folder, self._place).unlink(missing_ok=True)

    async def ask(self, question: str, *arguments: Any) -> list[Any]:
        """Ask all others at once.

        Returns:
            The answers, without those of processes that have ended or take too long.
        """
        if self._folder is None:
            return []
        own = socket_path(self._folder, self._place)
        others = [path for path in self._folder.glob("process-*.sock") if path != own]
        answers = await asyncio.gather(*[self._ask(path, question, *arguments) for path in others])
        return [answer for answer in answers if answer is not None]

    async def _ask(self, path: Path, question: str, *arguments: Any) -> Any:
        with suppress(FileNotFoundError, ConnectionError):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    reader, writer = await asyncio.open_unix_connection(path)
                    try:
                        writer.write(json.dumps([question, *arguments]).encode())
                        writer.write_eof()
                        return json.loads(await reader.read() or "null")
                    finally:
                        writer.close()
            except TimeoutError:
                _log.warning("%s did not answer %r within %g s", path.stem, question, ANSWER_SECONDS)
        return None
