"""The commands of `tensorpost`."""
