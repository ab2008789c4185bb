"""Memory of a process and of a host: what it is made of, fitted to readings, refused where they make no sense."""

from tula_core.models.memory.content import ContentMargin
from tula_core.models.memory.fit import MemoryModel, affine_bytes, fit_memory
from tula_core.models.memory.host import HostMemoryModel, HostRoom, fit_host_memory
from tula_core.models.memory.state import StateBytes, state_bytes

__all__ = [
    "ContentMargin",
    "HostMemoryModel",
    "HostRoom",
    "MemoryModel",
    "StateBytes",
    "affine_bytes",
    "fit_host_memory",
    "fit_memory",
    "state_bytes",
]
