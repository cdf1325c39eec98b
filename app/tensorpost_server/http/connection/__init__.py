"""Connections: the protocol class, its states and timeouts, receiving into memory, TLS."""
