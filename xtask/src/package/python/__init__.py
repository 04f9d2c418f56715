"""OxCCL: a collective communication library of NCCL's class, as the shared library that programs load instead of NCCL's.

    python -m oxccl run train.py
"""

import os

from ._build import NCCL_VERSION, __version__

__all__ = ["NCCL_VERSION", "__version__", "bundle_path", "include_path", "library_path", "plugin_path", "tool_path"]

_HERE = os.path.dirname(os.path.abspath(__file__))


def library_path():
    """The file libnccl.so.2."""
    return os.path.join(_HERE, "lib", "libnccl.so.2")


def bundle_path():
    """The GPU kernels; the library finds them beside itself."""
    return os.path.join(_HERE, "lib", "oxccl.oxptx")


def plugin_path():
    """The network plugin for NCCL's own library: NCCL_NET_PLUGIN."""
    return os.path.join(_HERE, "lib", "libnccl-net-oxccl.so")


def include_path():
    """The folder with nccl.h."""
    return os.path.join(_HERE, "include")


def tool_path():
    """The program oxccl."""
    return os.path.join(_HERE, "bin", "oxccl")
