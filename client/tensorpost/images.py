"""Pictures as arrays: PNG, JPEG, WebP and AVIF, read and written by Pillow, which is loaded when one is met."""

from .bodies.images import *  # noqa: F403 # the public name of what is in bodies/
