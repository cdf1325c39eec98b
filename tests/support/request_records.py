"""Collects the records of requests that the server has answered."""

from __future__ import annotations

from tensorpost_server.http.observability.request_record import RecordBatch, RequestRecord

__all__ = ["Records"]


class Records(RecordBatch):
    """Keeps every record in `found`, in the order in which the requests ended; put it at `service.records`."""

    def __init__(self) -> None:
        super().__init__([])
        self.found: list[RequestRecord] = []

    def add(self, record: RequestRecord) -> None:
        self.found.append(record)
