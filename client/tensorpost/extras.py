"""How to install what is optional: the extras of `pyproject.toml`."""

from .values.extras import *  # noqa: F403 # the public name of what is in values/
