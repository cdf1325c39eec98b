"""Plans, memory and workers. Knows neither HTTP nor what any device is."""

from ..planning import make_plan
from .admission import Admission, Ticket
from .pool import DeviceStatus, Pool
from .stages import STAGES, Stages
from .worker import InlineLimits, QueueSlot, Worker
from .worker_threads import WorkerThreads

__all__ = [
    "STAGES",
    "Admission",
    "DeviceStatus",
    "InlineLimits",
    "Pool",
    "QueueSlot",
    "Stages",
    "Ticket",
    "Worker",
    "WorkerThreads",
    "make_plan",
]
