"""Connections to a server: addresses, sockets, waits and deadlines."""
