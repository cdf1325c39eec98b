"""The state of the service: what lives as long as the application."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from tensorpost.values.library_message import without_paths
from tensorpost.values.problems import NotReady

from ..engine import Admission, Pool, WorkerThreads
from ..settings import Settings, setting_variable
from ..shared.process_group import ProcessGroup
from .access.access_control import AccessControl
from .background_threads import CallerThreads, background_threads
from .bounded_cache import BoundedCache
from .caller_address import TrustedProxies, caller_of
from .calls.call_batches import CallBatches
from .calls.prepared_call import CallKey, PreparedCall
from .observability.access_log import AccessLog
from .observability.kept_metrics import KeptMetrics
from .observability.metrics import RequestMetrics
from .observability.request_record import RecordBatch, refused_record
from .observability.traces import Traces
from .open_inference.graph_models import graph_model
from .open_inference.models import Model, ModelCatalogue
from .open_inference.shared_memory import SharedMemory
from .open_inference.statistics import ModelStatistics
from .wires.cluster_stores import Cluster
from .wires.graph_repository import ProcessGraphRepository
from .wires.graph_store import GraphStore, StoreEntry
from .wires.shared_graphs import SharedGraphs
from .wires.tensor_exports import TensorExports
from .wires.tensor_store import ProcessTensorStore, TensorStore

FREED_QUESTION = "freed tensors"
"""What a process asks the others to do: close held tensors that are freed."""

_MOST_CALLS = 512
_log = logging.getLogger(__name__)


def _stop_process() -> None:
    """Ask this process to stop in order: every ASGI server handles SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class Service:
    """What lives as long as the application; the pool is opened when it starts and closed when it stops.

    Attributes:
        group: what it shares with other processes of the same server.
        cluster: what it shares with servers on other machines; None if there are none.
        proxies: peers that forward the addresses of their callers; None if there are none.
        pool: the workers; None before the start and after the stop.
        draining: whether the server is about to stop; it then says that it is not ready.
        replays: whether responses may be replayed; False where middleware wants to see every response.
        kept_metrics: what processes have counted that have ended; None if there is one process, or without metrics.
        records: takes the record of each request that has ended, on every path; None if nobody wants them.
        parsing: the thread for large JSON and heads.
        scraping: held while metrics are written.
        asking: questions to other processes whose answers nobody waits for.
        slow_threads: threads for what may take seconds: pictures, npz, compressed bodies, the package onnx.
        end: ends the process when a device failed permanently, so that its supervisor starts a clean one.
    """

    settings: Settings
    admission: Admission
    access: AccessControl
    models: ModelCatalogue
    regions: SharedMemory
    proxies: TrustedProxies | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    cluster: Cluster | None = None
    pool: Pool | None = None
    draining: bool = False
    calls: BoundedCache[CallKey, PreparedCall] = field(
        default_factory=lambda: BoundedCache[CallKey, PreparedCall](_MOST_CALLS)
    )
    replays: bool = False
    access_log: AccessLog | None = None
    metrics: RequestMetrics | None = None
    traces: Traces | None = None
    kept_metrics: KeptMetrics | None = None
    records: RecordBatch | None = None
    parsing: WorkerThreads = field(default_factory=background_threads)
    scraping: asyncio.Lock = field(default_factory=asyncio.Lock)
    slow_threads: WorkerThreads = field(default_factory=lambda: background_threads(2, "tensorpost-slow"))
    end: Callable[[], None] = _stop_process
    model_statistics: ModelStatistics = field(init=False)
    graphs: GraphStore = field(init=False)
    shared_graphs: SharedGraphs = field(init=False)
    tensors: TensorStore = field(init=False)
    exports: TensorExports = field(default_factory=TensorExports)
    batches: CallBatches = field(init=False)
    asking: set[asyncio.Future[list[Any]]] = field(default_factory=set[asyncio.Future[list[Any]]])

    def __post_init__(self) -> None:
        self.model_statistics = ModelStatistics(self._model_of_caller)
        if self.metrics is not None and self.group.folder is not None:
            self.kept_metrics = KeptMetrics(self.group.folder, self.group)
        self.batches = CallBatches(self.settings, self.admission, CallerThreads(self.parsing, ""))
        if self.cluster is None:
            self.tensors = ProcessTensorStore(self.settings, self.admission, self.group, self._let_others_free)
        else:
            self.tensors = self.cluster.tensor_store(self.settings, self.admission)
        self.graphs = GraphStore(self.settings, self.admission, self.models.has, self._forget)
        repository = ProcessGraphRepository(self.group) if self.cluster is None else self.cluster.graph_repository()
        self.shared_graphs = SharedGraphs(self.graphs, repository, self.settings, self.slow_threads)

    @property
    def ready(self) -> bool:
        """Whether requests will be served."""
        return self.pool is not None and not self.draining and self.pool.lost is None

    def opened(self) -> Pool:
        """The pool, whether or not its devices still work.

        Raises:
            NotReady: it is not open.
        """
        if self.pool is None:
            raise self._not_ready("the server is starting or stopping; try again")
        return self.pool

    def workers(self) -> Pool:
        """The pool, to run something on.

        Raises:
            NotReady: it is not open, or a device failed permanently and this process is about to end.
        """
        pool = self.opened()
        if pool.lost is not None:
            raise self._not_ready(f"this server is ending, and another one should start: {without_paths(pool.lost)}")
        return pool

    def stopped(self) -> NotReady:
        """The error for a request that was not complete when the time to stop was over."""
        seconds = self.settings.shutdown_seconds
        return self._not_ready(
            f"the server was told to stop and waited {seconds} s for this request (setting "
            f"{setting_variable('shutdown_seconds')}); send it again to one that is ready"
        )

    def observe_by(self, access_log: AccessLog | None, traces: Traces | None = None) -> None:
        """Let the metrics, this access log and these traces, where they are on, know of each request that ends."""
        if self.records is not None:
            self.records.flush()
        for before in (self.access_log, self.traces):
            if before is not None:
                before.close()
        self.access_log, self.traces = access_log, traces
        observers = (self.metrics, access_log, traces, self.model_statistics)
        self.records = RecordBatch([observer.observe for observer in observers if observer is not None])

    def observe_refusal(self, status: int, id_: str, address: str | None) -> None:
        """Take note of a request that the protocol class refused, see `OBSERVE_REFUSAL`."""
        if self.records is not None:
            self.records.add(refused_record(status, id_, address))

    def sweep(self) -> None:
        """Drop what callers have left: shared memory, stored graphs and held tensors that nobody uses."""
        self.regions.sweep()
        self.shared_graphs.note_uses()
        self.graphs.sweep()
        self.tensors.sweep()
        self.exports.sweep()

    def owner_of(self, scope: Scope) -> str:
        """Whose graphs and tensors a request means: those of its key, or those that everybody shares without keys."""
        return "" if self.access.anonymous else caller_of(scope)

    def model(self, scope: Scope, name: str, version: str | None = None) -> Model:
        """The model of `/v2` with this name: a preset or an operator, or a stored graph that the request may call.

        Raises:
            UnknownOperator: there is no such model, or no such version of an operator's.
            GraphNotFound: there is no such version of the stored graph.
        """
        owner = self.owner_of(scope)
        if not self.models.has(name) and self.graphs.has(owner, name):
            return graph_model(self.graphs.find(owner, name, version), self.settings.max_graph_nodes)
        return self.models.find(name, version)

    def versions_of(self, scope: Scope, model: Model) -> Sequence[str]:
        """The versions of a model that may be called, the newest last."""
        if model.stored is None:
            return [model.version]
        return [str(each.version) for each in self.graphs.versions(self.owner_of(scope), model.name)]

    def model_names(self, scope: Scope) -> Sequence[str]:
        """The names of the models that a request may call: presets, stored graphs, operators."""
        presets, stored = [model.name for model in self.models.presets], self.graphs.listed(self.owner_of(scope))
        return [*presets, *dict.fromkeys([graph.name for graph in stored]), *self.models.names[len(presets) :]]

    def _model_of_caller(self, caller: str | None, name: str) -> tuple[str | None, str] | None:
        """What a model's statistics are kept by: its name, and of a stored graph the caller; None if there is none."""
        if self.models.has(name):
            return None, name
        owner = "" if self.access.anonymous else caller or ""
        return (owner, name) if self.graphs.has(owner, name) else None

    def _forget(self, graph: StoreEntry) -> None:
        """Drop the planned calls of a graph that is not kept any more; they hold its weights."""
        for key in [key for key, prepared in self.calls.items() if prepared.stored is graph]:
            del self.calls[key]
        self.batches.forget(graph)

    def _let_others_free(self) -> None:
        """Let the other processes close freed tensors at once; what one does not hear, it does with its next sweep."""
        if self.group.is_shared:
            asking = asyncio.ensure_future(self.group.siblings.ask(FREED_QUESTION))
            self.asking.add(asking)
            asking.add_done_callback(self.asking.discard)

    async def close_freed(self) -> None:
        """The answer to `FREED_QUESTION`."""
        self.tensors.close_freed()

    def device_lost(self, reason: str) -> None:
        """Log it and end the process: a failed device leaves state in the process that cannot be repaired there."""
        _log.critical("%s; this process ends", reason)
        self.end()

    def _not_ready(self, why: str) -> NotReady:
        return NotReady(why, extra={"retry_after_seconds": self.settings.retry_after_seconds})


def service_of(request: Request) -> Service:
    """The service of the application that got this request."""
    return request.app.state.service
