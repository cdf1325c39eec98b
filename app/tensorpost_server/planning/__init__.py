"""What will be done for an operation, decided before any tensor byte is read: plans and the slices of their outputs."""

from .lifetimes import Stage
from .plan import Plan, make_device_plan, make_plan
from .row_plan import plan_of_rows
from .slices import OutputSlice, OutputSlices, Slices, cut
from .step import PlanStep
from .streaming import local_step

__all__ = [
    "OutputSlice",
    "OutputSlices",
    "Plan",
    "PlanStep",
    "Slices",
    "Stage",
    "cut",
    "local_step",
    "make_device_plan",
    "make_plan",
    "plan_of_rows",
]
