"""Everything that can be refused, and the one JSON shape it travels in (RFC 9457, `application/problem+json`)."""

from .values.problems import *  # noqa: F403 # the public name of what is in values/
