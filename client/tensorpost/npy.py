"""The head of an npy file, written and read; the file's elements follow it, row-major and little-endian."""

from .bodies.npy import *  # noqa: F403 # the public name of what is in bodies/
