"""Warnings, errors and tracebacks in the format of the access log, so that a collector reads all of them."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

from ...settings import Settings
from .access_log import timestamp


def log_format(settings: Settings) -> Literal["json", "console"]:
    """The format of lines on standard error: `auto` and `off` are console on a terminal, else JSON."""
    choice = settings.access_log
    return choice if choice in ("json", "console") else "console" if sys.stderr.isatty() else "json"


def log_formatter(settings: Settings) -> logging.Formatter:
    """The formatter of log records for these settings."""
    return JsonFormatter() if log_format(settings) == "json" else ConsoleFormatter()


def begin_log(settings: Settings, log_level: str) -> None:
    """Write the log to standard error as the settings say, from now on.

    Args:
        settings: `access_log` says in which format.
        log_level: the least important messages that are written.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(log_formatter(settings))
    handler.addFilter(_says_more_than_uvicorn)
    logging.captureWarnings(True)
    logging.basicConfig(level=log_level.upper(), handlers=[handler])


def _says_more_than_uvicorn(record: logging.LogRecord) -> bool:
    """Whether a record is not uvicorn's about a failed start, which our own error with its reason follows."""
    return record.getMessage() != "Application startup failed. Exiting."


class JsonFormatter(logging.Formatter):
    """A record as a JSON object in one line of ASCII: time, event, level, logger, message and, if any, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record.created), "event": "log", "level": record.levelname.lower(),
            "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        return json.dumps(line)


class ConsoleFormatter(logging.Formatter):
    """A record as a line for people. Lines of a traceback begin with spaces, so that no text looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{timestamp(record.created)} {record.levelname} {_harmless(record.getMessage())}"]
        lines += [f"  {_harmless(line)}" for line in _traceback(self, record).splitlines()]
        return "\n".join(lines)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    return "\n".join([*parts, record.stack_info] if record.stack_info else parts)


def _harmless(text: str) -> str:
    r"""A text whose control characters and line ends are written as in a Python string: `\x1b`."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text])
