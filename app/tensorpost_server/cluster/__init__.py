"""What the replicas on Ray share: held tensors and stored graphs, which an actor lists.

The actor (`index.py`) is on the head node, and runs for as long as there are replicas. Its package imports Ray when the
first object of it is made.
"""
