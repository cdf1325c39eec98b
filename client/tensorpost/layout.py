"""Where a tensor's elements lie in a block of bytes, for any dialect; the only place that makes a view of one."""

from .values.layout import *  # noqa: F403 # the public name of what is in values/
