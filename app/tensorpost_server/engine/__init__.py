"""Plans, memory and workers. Knows neither HTTP nor what any device is."""

from ..planning import make_plan
from .admission import Admission, Ticket
from .events import STAGES, Stages
from .inline import Inline, measure_inline
from .pool import DeviceStatus, Pool
from .worker import Place, Worker

__all__ = [
    "STAGES",
    "Admission",
    "DeviceStatus",
    "Inline",
    "Place",
    "Pool",
    "Stages",
    "Ticket",
    "Worker",
    "make_plan",
    "measure_inline",
]
