"""What another library says of an error, as it may stand in a message to a caller."""

from __future__ import annotations

import errno
import re
from collections.abc import Generator
from contextlib import contextmanager

from .problems import InvalidFrame, TensorpostError

__all__ = ["library_message", "reading", "without_paths"]

_LONGEST = 300  # characters; some libraries quote what they were given
_PATH = re.compile(
    r"""(?<![\w.:/\\~-])          # not within a word, a URL or a relative path
    (?:[A-Za-z]:[\\/]|\\\\|~?/)   # C:\\, C:/, \\\\ of a share, / or ~/
    [^\s'"<>|:;,()\[\]]*[\\/]     # at least one folder, so that a / alone stays
    [^\s'"<>|:;,()\[\]]*""",
    re.VERBOSE,
)
_OBJECT = re.compile(r"<[^<>]* object at 0x[0-9a-fA-F]+>")


def without_paths(text: str) -> str:
    """The text with `(path)` in the place of each absolute path: callers need not know where a server keeps its files.

    Args:
        text: a message that a person reads.
    """
    return _PATH.sub("(path)", text)


def library_message(error: BaseException) -> str:
    """The message of another library's error in one line, without paths of the machine and addresses of its memory.

    Args:
        error: what the library raised.

    Returns:
        At most 300 characters; the name of the error's class if it has no message.
    """
    said = " ".join(_OBJECT.sub("the content", without_paths(str(error))).split())
    return said[:_LONGEST] or type(error).__name__


@contextmanager
def reading(refusal: str) -> Generator[None]:
    """Whatever another library raises while it reads a caller's bytes becomes `InvalidFrame`, of any class.

    A lack of memory is no fault of the bytes: `MemoryError` stays, and what libraries raise in its place becomes it.

    Args:
        refusal: the beginning of the message, as `the body cannot be read as a picture`.

    Raises:
        InvalidFrame: the library raised an error of another class.
        MemoryError: there is no memory.
    """
    try:
        yield
    except (TensorpostError, MemoryError):
        raise
    except Exception as error:
        said = library_message(error)
        if "out of memory" in said.lower() or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError(said) from error
        raise InvalidFrame(f"{refusal}: {said}") from error
