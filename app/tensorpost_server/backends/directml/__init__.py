"""DirectML on Windows, spoken to directly: every operator of the catalogue that the device's feature level has.

plan -> `operators` (its descriptor, or why there is none) -> `c_structs` (the descriptor's C struct) -> `operators`
(compiled once, then kept) -> `queue` (uploaded, bound, dispatched, read back). COM objects are called by `com`, through
the tables that `d3d12` lists.
"""

from .backend import DirectmlBackend

__all__ = ["DirectmlBackend"]
