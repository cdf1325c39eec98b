"""Plans, memory and workers. Knows neither HTTP nor what any device is."""

from ..planning import make_plan
from .admission import Admission, Ticket
from .pool import DeviceStatus, Pool
from .stages import STAGES, Stages
from .step_times import GraphRecord, StepTimes
from .worker import InlineLimits, QueueSlot, Worker
from .worker_threads import WorkerThreads

__all__ = [
    "STAGES",
    "Admission",
    "DeviceStatus",
    "GraphRecord",
    "InlineLimits",
    "Pool",
    "QueueSlot",
    "Stages",
    "StepTimes",
    "Ticket",
    "Worker",
    "WorkerThreads",
    "make_plan",
]
