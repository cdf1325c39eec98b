"""One operator or a graph over a Ray cluster, for tensors that are larger than any of its machines.

Each output falls into chunks, each a run of consecutive bytes; a task of Ray's computes a chunk by the plan and the
backend that the service would use, and gives it back as an object or writes it into a Zarr store. An array that the
cluster holds is the objects of its chunks, of which a task reads what it needs. Scheduling, moving the inputs and
computing again what a lost node had are Ray's work.

=================  ====================================================================
module             contents
=================  ====================================================================
`job.py`           a run: which chunks there are, what each reads, and its task
`held_chunks.py`   an array on the nodes: put, read from a store, read in boxes, written
`graph_part.py`    which parts of the inputs a box depends on, and computing it
`part_forms.py`    the forms that compute a box from parts
`chunks.py`        the cut of an array
`cluster.py`       Ray: tasks in flight, nodes
=================  ====================================================================
"""

from .held_chunks import HeldChunks, put, read_zarr
from .job import run

__all__ = ["HeldChunks", "put", "read_zarr", "run"]
