"""The values of a call between the wire that it came in by and its execution."""
