"""Make the description of the package from README.md: what the README links to is not beside it in a package index.

Hatchling calls this when it builds (`make dist`). Absolute addresses would need a public host, and there is none yet.
Relative links become the names of files in the source distribution, and relative pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = r"\((?!https?://|#)([^)\s#]+)(?:#[^)\s]*)?\)"
_PICTURE = re.compile(rf"^!\[[^\]]*\]{_RELATIVE}\n\n?", re.MULTILINE)
_LINK = re.compile(rf"(?<!!)\[([^\]]+)\]{_RELATIVE}")
_NOTE = "Paths such as `docs/tutorial.md` name files of the source distribution.\n\n"


class Readme(MetadataHookInterface):
    """Sets the field `readme` of the project's metadata."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set it."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text)}


def standalone(readme: str) -> str:
    """A README that needs no file beside it."""
    heading, _, rest = readme.partition("\n\n")
    return f"{heading}\n\n{_NOTE}{_LINK.sub(_named, _PICTURE.sub('', rest))}"


def _named(link: re.Match[str]) -> str:
    text, target = link.groups()
    return f"{text} (`{target}`)"
