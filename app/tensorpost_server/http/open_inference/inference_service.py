"""What `/v2` keeps as long as the application lives."""

from __future__ import annotations

from ...settings import Settings
from .models import ModelCatalogue
from .shared_memory import SharedMemory
from .statistics import ModelStatistics
from .translation import resolve_presets

__all__ = ["InferenceService"]


class InferenceService:
    """The models, and how often each was called.

    Args:
        settings: `presets`, `shared_memory` and `shared_memory_prefix`.

    Attributes:
        models: every model by its name.
        statistics: what `GET /v2/models/stats` answers.
        regions: shared memory that callers registered.

    Raises:
        InvalidParameter: a preset cannot work, or there is no shared memory here.
    """

    def __init__(self, settings: Settings) -> None:
        self.models = ModelCatalogue(settings.presets)
        resolve_presets(self.models)
        self.statistics = ModelStatistics(self.models)
        self.regions = SharedMemory(settings)
