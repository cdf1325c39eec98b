"""Write the software bill of materials of the image: `make sbom`.

What stands in it is what `requirements/server.txt` pins, since the image installs that and nothing else: each package
with its version, when it is installed, the SHA-256 of its files, and who needs it. The same file gives the same bytes.

Sources: CycloneDX 1.6 (JSON), package URLs (purl-spec, type pypi).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Pin", "bill_of_materials", "pins_in"]

ROOT = Path(__file__).parent.parent
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? *\\?$")
_HASH = re.compile(r" +--hash=sha256:(?P<hash>[0-9a-f]{64})(?: \\)?$")
_VIA = re.compile(r" +#(?: via)? +(?!via$)(?P<name>[A-Za-z0-9._-]+)(?: \((?P<project>[^)]*)\))?$")


@dataclass(slots=True)
class Pin:
    """A package that is pinned.

    Attributes:
        name: as the file writes it.
        version: the only one that is installed.
        marker: when it is installed; None for always.
        hashes: SHA-256 of its files, one of which is installed.
        needed_by: names of the packages, or of this project, that ask for it.
    """

    name: str
    version: str
    marker: str | None
    hashes: list[str]
    needed_by: list[str]

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version}"


def pins_in(text: str) -> Iterator[Pin]:
    """The pins of a requirements file, as `make requirements` writes it.

    Raises:
        ValueError: a line is none that it writes.
    """
    pin: Pin | None = None
    for line in text.splitlines():
        if (found := _PIN.fullmatch(line)) is not None:
            if pin is not None:
                yield pin
            pin = Pin(found["name"], found["version"], found["marker"], [], [])
        elif pin is not None and (found := _HASH.fullmatch(line)) is not None:
            pin.hashes.append(found["hash"])
        elif pin is not None and (found := _VIA.fullmatch(line)) is not None:
            pin.needed_by.append(found["name"])
        elif line.strip() not in ("", "# via") and not line.strip().startswith("#   -c "):
            raise ValueError(f"no line of a requirements file with hashes: {line!r}")
    if pin is not None:
        yield pin


def bill_of_materials(text: str, name: str, version: str) -> dict[str, Any]:
    """The document.

    Args:
        text: of the requirements file.
        name: of the project.
        version: of the project.
    """
    pins = sorted(pins_in(text), key=lambda pin: pin.purl)
    root = f"pkg:pypi/{name}@{version}"
    refs = {name: root, **{pin.name: pin.purl for pin in pins}}
    needs: dict[str, list[str]] = {ref: [] for ref in refs.values()}
    for pin in pins:
        for parent in pin.needed_by:
            needs[refs[parent]].append(pin.purl)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, root + text)}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": root, "name": name, "version": version, "purl": root}
        },
        "components": [_component(pin) for pin in pins],
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(parts))} for ref, parts in sorted(needs.items())],
    }


def _component(pin: Pin) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library", "bom-ref": pin.purl, "name": pin.name, "version": pin.version, "purl": pin.purl,
        "externalReferences": [
            {
                "type": "distribution", "url": pin.purl, "comment": "one of these files is installed",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes],
            }
        ],
    }  # fmt: skip
    if pin.marker is not None:
        found["properties"] = [{"name": "python:marker", "value": pin.marker}]
    return found


def main() -> int:
    """Write it to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path)
    target: Path = parser.parse_args().target
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    document = bill_of_materials(
        (ROOT / "requirements" / "server.txt").read_text("utf-8"), project["name"], project["version"]
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    sys.stdout.write(f"{target}: {len(document['components'])} packages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
