"""Meshes of ranks, and the place of this process in one."""
from __future__ import annotations

import ctypes
import os
from typing import Mapping

from .._abi import text
from ._abi import MeshDim, check, lib

# Launchers, by the variables that they set: rank on this machine, ranks on this machine, ranks in all.
LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),  # torchrun, weightctl train run
    ("RANK", "WORLD_SIZE", "WORLD_SIZE"),  # by hand
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
)


class Mesh:
    """
    Named dimensions of ranks; the last one varies fastest.

    dims  sizes by name, in order
    rank  of this process
    size  ranks in all
    """

    _handle: ctypes.c_void_p | None = None  # until __init__ has one

    def __init__(self, dims: Mapping[str, int], rank: int):
        self.dims, self.rank = dict(dims), rank
        handle = ctypes.c_void_p()
        array = (MeshDim * len(self.dims))(*(MeshDim(text(name), n) for name, n in self.dims.items()))
        check(lib.weightd_mesh_new(array, len(self.dims), ctypes.byref(handle)))
        self._handle = handle
        self.size = 1
        for n in self.dims.values():
            self.size *= n
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a mesh of {self.size} ranks")

    def __del__(self, free=lib.weightd_mesh_free):
        if self._handle is not None:
            free(self._handle)

    def __repr__(self) -> str:
        return f"<mesh {self.dims}, rank {self.rank}>"

    def __reduce__(self):
        return Mesh, (self.dims, self.rank)

    def coordinate(self, dim: str) -> int:
        """The coordinate of this rank. KeyError."""
        found = ctypes.c_uint32()
        check(lib.weightd_mesh_coordinate(self._handle, self.rank, self._index(dim), ctypes.byref(found)))
        return found.value

    def group(self, dim: str) -> list[int]:
        """The ranks that differ from this one in that dimension only, in its order. KeyError."""
        ranks = (ctypes.c_uint32 * self.dims[dim])()
        check(lib.weightd_mesh_group(self._handle, self.rank, self._index(dim), ranks))
        return list(ranks)

    def _index(self, dim: str) -> int:
        if dim not in self.dims:
            raise KeyError(dim)
        return list(self.dims).index(dim)


def init_mesh(dims: Mapping[str, int] | None = None, rank: int | None = None) -> Mesh:
    """
    The mesh of the processes that train together: {"dp": 4} is data parallelism of four. Without `dims`, "dp" has
    as many as the launcher started ($WORLD_SIZE); without a launcher, one.

    rank  of this process; None: from the launcher: torchrun, weightctl train run, mpirun. Functions that
          multiprocessing spawned pass the rank that they are given, unless they set $RANK and $WORLD_SIZE

    ValueError: other numbers of ranks than the launcher's; ranks on several machines, which cannot train together yet.
    Error: a bad name or size.
    """
    launched_rank, launched_size = _launched()
    if rank is None:
        rank = launched_rank
    size = launched_size
    if dims is None:
        dims = {"dp": size or 1}
    if rank is None and size is None:
        rank = 0
    mesh = Mesh(dims, rank or 0)
    if size is not None and mesh.size != size:
        raise ValueError(f"the mesh {dict(dims)} has {mesh.size} ranks, and the launcher started {size} ($WORLD_SIZE); "
                         "init_mesh() without dimensions takes its number")
    if rank is None:
        raise ValueError("the launcher has set $WORLD_SIZE and no $RANK; pass init_mesh(..., rank=)")
    return mesh


def launched_by() -> str | None:
    """The variable with the rank of this process that a launcher, or the program, has set."""
    return next((rank for rank, *_ in LAUNCHERS if rank in os.environ), None)


def _launched() -> tuple[int | None, int | None]:
    """Rank and number of ranks as the launcher has them."""
    for rank, on_machine, in_all in LAUNCHERS:
        if rank not in os.environ:
            continue
        size, here = _number(in_all), _number(on_machine)
        if size is not None and here is not None and size != here:
            raise ValueError(f"the launcher started {size} ranks (${in_all}), {here} of them on this machine "
                             f"(${on_machine}); ranks of several machines cannot train together yet")
        return _number(rank), size
    return None, _number("WORLD_SIZE")


def _number(variable: str) -> int | None:
    value = os.environ.get(variable)
    if value is None:
        return None
    if not value.isdecimal():
        raise ValueError(f"${variable} is {value!r}, which is no number")
    return int(value)
