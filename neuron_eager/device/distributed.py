"""`torch.distributed` with the backend "neuron": gloo, on the memory of the neuron tensors.

Every collective has finished when it returns, as every op on the device has; point-to-point calls stay asynchronous, or
two ranks that send first would wait for each other.
"""
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from . import devices, memory

# The collectives that write their first argument, the ones that write nothing, and the second names that torch 2.13
# gives some of them
_WRITING = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced",
            "_allgather_base", "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter",
            "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base")
_BARRIERS = ("barrier", "monitored_barrier")
_SECOND_NAMES = {
    "all_gather_single": "_allgather_base", "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base", "all_to_all_single": "alltoall_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
_POINT_TO_POINT = ("send", "recv", "recv_anysource")


def _aliases(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return memory.to_cpu(value) if value.device.type == devices.NAME else value
    return [_aliases(v) for v in value] if isinstance(value, (list, tuple)) else value


def _finished(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def _collective(name: str, writes: bool) -> Callable[..., Any]:
    def run(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        work = getattr(self.gloo, name)(*map(_aliases, args), **{k: _aliases(v) for k, v in kwargs.items()})
        if work is not None:
            work.wait()
        return _finished(args[0] if writes else [])
    return run


def _point_to_point(name: str) -> Callable[..., Any]:
    def run(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.gloo, name)(*map(_aliases, args), **kwargs)
    return run


class ProcessGroup(dist.ProcessGroup):
    """A process group on neuron tensors that runs gloo on their memory."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._rank, self._size = rank, size
        self._group_name = self._group_desc = ""

    def shutdown(self) -> None:
        """End gloo's threads: as long as anything refers to this group (DDP does), they would run into the exit."""
        self.gloo = None

    def getBackendName(self) -> str:
        return devices.NAME

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, text: str) -> None:
        self._group_desc = text

    def getGroupDesc(self) -> str:
        return self._group_desc


for _name in (*_WRITING, *_BARRIERS):
    setattr(ProcessGroup, _name, _collective(_name, _name in _WRITING))
for _name, _gloo_name in _SECOND_NAMES.items():
    setattr(ProcessGroup, _name, _collective(_gloo_name, True))
for _name in _POINT_TO_POINT:
    setattr(ProcessGroup, _name, _point_to_point(_name))
