"""Requests to servers and their answers over HTTP: senders, retries, keys and several servers."""
