"""DirectML's descriptors as frozen values. The server imports this package too: both sides must agree on it.

`OPERATORS` lists every operator there is; `parse_operator` reads any operator document. Each name is loaded when it is
first asked for: see `families.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the families say what they export; a new family is one more line here
    from .activation import *  # noqa: F403
    from .attention import *  # noqa: F403
    from .base import Descriptor as Descriptor
    from .catalogue import OperatorFacts as OperatorFacts
    from .catalogue import SupportRow as SupportRow
    from .catalogue import operator_names as operator_names
    from .clip import *  # noqa: F403
    from .convolution import *  # noqa: F403
    from .depth_space import *  # noqa: F403
    from .documents import *  # noqa: F403
    from .elementwise import *  # noqa: F403
    from .elementwise_base import *  # noqa: F403
    from .feature_levels import *  # noqa: F403
    from .fold import *  # noqa: F403
    from .generator import *  # noqa: F403
    from .indexing import *  # noqa: F403
    from .indexing_nd import *  # noqa: F403
    from .logic import *  # noqa: F403
    from .movement import *  # noqa: F403
    from .normalization import *  # noqa: F403
    from .operator_desc import OPERATORS as OPERATORS
    from .operator_desc import OperatorDesc as OperatorDesc
    from .plain_operators import *  # noqa: F403
    from .pooling import *  # noqa: F403
    from .product import *  # noqa: F403
    from .quantization import *  # noqa: F403
    from .recurrent import *  # noqa: F403
    from .reduction import *  # noqa: F403
    from .resample import *  # noqa: F403
    from .resample_grad import *  # noqa: F403
    from .roi import *  # noqa: F403
    from .scan import *  # noqa: F403
    from .softmax import *  # noqa: F403
    from .tensor import *  # noqa: F403
    from .tile import *  # noqa: F403
    from .training import *  # noqa: F403
    from .value_scale import *  # noqa: F403
else:
    import importlib

    from .families import all_operators, class_named, module_of_name

    __all__ = ["OPERATORS", *module_of_name()]  # noqa: PLE0604 # they are strings

    def __getattr__(name: str) -> Any:
        if name == "OPERATORS":
            found = all_operators()
        elif name in module_of_name():
            found = class_named(name)
        elif name in module_of_name().values():
            return importlib.import_module(f".{name}", __name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found  # asked for once
        return found
