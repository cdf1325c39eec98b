"""JSON that has one reading only (RFC 8259, with the choices it leaves open closed)."""

from .bodies.strict_json import *  # noqa: F403 # the public name of what is in bodies/
