"""Resampling by sizes or scales, nearest or linear, as one DirectML descriptor."""

from .calls.resampling import *  # noqa: F403 # the public name of what is in calls/
