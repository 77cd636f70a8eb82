"""Meshes of ranks, and the place of this process in one."""
from __future__ import annotations

import ctypes
import math
import os
from typing import Mapping, NamedTuple

from .._abi import text
from ._abi import MeshDim, check, lib


class Variables(NamedTuple):
    """
    Those that a launcher sets for a rank; None: it has none.

    is_there  shows that the launcher started this process
    machine, machines  the number of this machine, and how many there are
    """

    is_there: str
    rank: str
    local_rank: str | None
    size: str
    local_size: str | None
    machine: str | None
    machines: str | None


LAUNCHERS = (
    # torchrun, weightctl train run
    Variables("LOCAL_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    # by hand
    Variables("RANK", "RANK", None, "WORLD_SIZE", None, None, None),
    # mpirun of Open MPI
    Variables("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", None, None),
    # srun
    Variables("SLURM_PROCID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", None, "SLURM_NODEID", "SLURM_NNODES"),
)


class Mesh:
    """
    Named dimensions of ranks; the last one varies fastest. Ranks of several machines are numbered machine by machine,
    as many on each: rank r is rank r % local_size of node r // local_size.

    dims        sizes by name, in order
    rank        of this process, among those of all machines
    size        ranks in all
    n_nodes     machines
    node        this machine, from 0 on
    local_rank  of this process, among those of this machine
    local_size  ranks of each machine
    address, port  where the machines meet: of node 0; None and 0: those of the environment
    """

    _handle: ctypes.c_void_p | None = None  # until __init__ has one

    def __init__(self, dims: Mapping[str, int], rank: int, n_nodes: int = 1, address: str | None = None, port: int = 0):
        self.dims, self.rank, self.n_nodes = dict(dims), rank, n_nodes
        self.address, self.port = address, port
        handle = ctypes.c_void_p()
        array = (MeshDim * len(self.dims))(*(MeshDim(text(name), n) for name, n in self.dims.items()))
        check(lib.weightd_mesh_new(array, len(self.dims), ctypes.byref(handle)))
        self._handle = handle
        self.size = math.prod(self.dims.values())
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a mesh of {self.size} ranks")
        if n_nodes < 1 or self.size % n_nodes:
            raise ValueError(f"{self.size} ranks are not as many on each of {n_nodes} machines; start equal numbers")
        if not 0 <= port < 2**16:
            raise ValueError(f"port is {port}; it must be a number from 1 to 65535, or 0 for $MASTER_PORT + 1")
        self.local_size = self.size // n_nodes
        self.node, self.local_rank = divmod(rank, self.local_size)

    def __del__(self, free=lib.weightd_mesh_free):
        if self._handle is not None:
            free(self._handle)

    def __repr__(self) -> str:
        nodes = f", node {self.node} of {self.n_nodes}" if self.n_nodes > 1 else ""
        return f"<mesh {self.dims}, rank {self.rank}{nodes}>"

    def __reduce__(self):
        return Mesh, (self.dims, self.rank, self.n_nodes, self.address, self.port)

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


def init_mesh(dims: Mapping[str, int] | None = None, rank: int | None = None, *, n_nodes: int | None = None,
              node: int | None = None, address: str | None = None, port: int = 0) -> Mesh:
    """
    The mesh of the processes that train together: {"dp": 4} is data parallelism of four, and {"replicate": 2, "shard": 4}
    two replicas of four ranks ("zero2", "zero3"). Without `dims`, "dp" has as many as the launcher started
    ($WORLD_SIZE); without a launcher, one.

    rank     of this process, among those of all machines; None: from the launcher: torchrun, weightctl train run,
             mpirun, srun. Functions that multiprocessing spawned pass the rank that they are given, unless they set
             $RANK and $WORLD_SIZE; on several machines, node * nprocs + that one
    n_nodes  machines, each with as many ranks, numbered machine by machine; None: from the launcher, else 1
    node     this machine, from 0 on; None: the one that the rank is on
    address  name or address of node 0, where the machines meet; None: $MASTER_ADDR
    port     there: rank i of each machine uses port + i; 0: $MASTER_PORT + 1, as torchrun listens at $MASTER_PORT

    What goes between machines is not encrypted, and who connects to these ports is trusted: see weightd-train(7).

    ValueError: other numbers of ranks or machines than the launcher's; machines with different numbers of ranks, or
    ranks that are not numbered machine by machine. Error: a bad name or size.
    """
    found = _launched()
    if rank is None:
        rank = found.rank
    if dims is None:
        dims = {"dp": found.size or 1}
    if rank is None and found.size is None:
        rank = 0
    if n_nodes is not None and found.n_nodes not in (None, n_nodes):
        raise ValueError(f"n_nodes is {n_nodes}, and the launcher started ranks on {found.n_nodes} machines; "
                         "init_mesh() without it takes that number")
    mesh = Mesh(dims, rank or 0, n_nodes or found.n_nodes or 1, address, port)
    if found.size is not None and mesh.size != found.size:
        raise ValueError(f"the mesh {dict(dims)} has {mesh.size} ranks, and the launcher started {found.size} "
                         f"(${found.by.size}); init_mesh() without dimensions takes its number")
    if rank is None:
        raise ValueError("the launcher has set $WORLD_SIZE and no $RANK; pass init_mesh(..., rank=)")
    if node is not None and mesh.node != node:
        raise ValueError(f"node is {node}, and rank {rank} is on node {mesh.node} of a mesh with {mesh.local_size} "
                         f"ranks on each of {mesh.n_nodes} machines; pass the rank among all machines, node * "
                         f"{mesh.local_size} + the rank on this machine")
    return mesh


def launched_by() -> str | None:
    """A variable of this rank that a launcher, or the program, has set."""
    return next((row.is_there for row in LAUNCHERS if _has_launched(row)), None)


class Launched(NamedTuple):
    """The numbers that a launcher has set; None: it has not."""

    by: Variables
    rank: int | None
    size: int | None
    n_nodes: int | None


def _has_launched(row: Variables) -> bool:
    # A single task of SLURM may start the ranks itself.
    return row.is_there in os.environ and not (row.is_there == "SLURM_PROCID" and _number(row.size) in (None, 1))


def _launched() -> Launched:
    row = next((row for row in LAUNCHERS if _has_launched(row)), None)
    if row is None:
        return Launched(LAUNCHERS[1], None, _number("WORLD_SIZE"), None)
    rank, local, size, here, machines = (_number(name) for name in (row.rank, row.local_rank, row.size, row.local_size,
                                                                     row.machines))
    if size is None or local is None or not (here or machines):
        return Launched(row, local if rank is None else rank, size, None)
    n_nodes = machines or -(-size // here)
    each = here or size // n_nodes
    if each * n_nodes != size or local >= each:
        raise ValueError(f"the launcher started {size} ranks (${row.size}) on {n_nodes} machines, with different "
                         "numbers on them; start as many on each")
    if rank is None:
        rank = (_number(row.machine) or 0) * each + local
    machine = rank // each if _number(row.machine) is None else _number(row.machine)
    if rank != machine * each + local:
        raise ValueError(f"rank {rank} (${row.rank}) is rank {local} on its machine (${row.local_rank}), and each "
                         f"machine has {each}: ranks must be numbered machine by machine (mpirun --map-by slot, srun "
                         "--distribution=block)")
    return Launched(row, rank, size, n_nodes)


def _number(variable: str | None) -> int | None:
    value = os.environ.get(variable) if variable else None
    if value is None:
        return None
    if not value.isdecimal():
        raise ValueError(f"${variable} is {value!r}, which is no number")
    return int(value)
