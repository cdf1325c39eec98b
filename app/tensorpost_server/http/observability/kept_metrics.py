"""What processes of one server have counted that have ended, or do not answer.

Each process keeps what it has said last in a file. Without it, the sums of all processes would become smaller when one
ends, which Prometheus takes for a restart of the whole server: it would count all that is left once more.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection
from pathlib import Path

from prometheus_client.exposition import generate_latest

from ...shared.process_group import ProcessGroup
from ...shared.shared_folder import metrics_path
from .joined_metrics import JoinedMetrics

_ENDED = "ended"
_log = logging.getLogger(__name__)


class KeptMetrics:
    """The files. There are at most two for each place: of the process that is or was last there, and of all before.

    Args:
        folder: where they are.
        group: the processes; its database keeps a look at the files and a change of them apart.

    Attributes:
        name: what tells this process from all others.
    """

    def __init__(self, folder: Path, group: ProcessGroup) -> None:
        self._folder, self._group, self.name = folder, group, secrets.token_hex(8)

    def begin(self) -> None:
        """Join what the processes have left that were at this place before; called once, when the server starts."""
        for path in self._folder.glob(f"{self._new_name}*"):  # of a process that was killed
            path.unlink()
        files = [*self._folder.glob(metrics_path(self._folder, self._group.place, "*").name)]
        if not files:
            return
        joined = generate_latest(JoinedMetrics([], [path.read_text() for path in files]))
        new = self._written(joined)
        with self._group.database.change():
            for path in files:
                path.unlink()
            new.rename(metrics_path(self._folder, self._group.place, _ENDED))

    def write(self, text: str) -> None:
        """Keep what this process says of itself; on any thread."""
        try:
            self._written(text.encode()).rename(metrics_path(self._folder, self._group.place, self.name))
        except OSError as error:
            _log.warning("metrics are not kept for the time after this process: %s", error)

    def read(self, without: Collection[str]) -> list[str]:
        """What all processes have said last, without these, which are known by their names."""
        with self._group.database.change():
            files = self._folder.glob("metrics-*")
            return [path.read_text() for path in files if path.name.rpartition("-")[2] not in without]

    def _written(self, text: bytes) -> Path:
        path = self._folder / f"{self._new_name}{secrets.token_hex(8)}"
        try:
            path.write_bytes(text)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    @property
    def _new_name(self) -> str:
        return f"new-metrics-{self._group.place}-"
