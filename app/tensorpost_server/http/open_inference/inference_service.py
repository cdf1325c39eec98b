"""What `/v2` keeps as long as the application lives."""

from __future__ import annotations

from ...settings import Settings
from .models import ModelCatalogue
from .statistics import ModelStatistics
from .translation import resolve_presets

__all__ = ["InferenceService"]


class InferenceService:
    """The models, and how often each was called.

    Args:
        settings: `presets`.

    Attributes:
        models: every model by its name.
        statistics: what `GET /v2/models/stats` answers.

    Raises:
        InvalidParameter: a preset cannot work.
    """

    def __init__(self, settings: Settings) -> None:
        self.models = ModelCatalogue(settings.presets)
        resolve_presets(self.models)
        self.statistics = ModelStatistics(self.models)
