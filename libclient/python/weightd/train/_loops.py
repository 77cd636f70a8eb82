"""Modules as views of one flat range in each rank, for loops with any optimizer of torch."""
from __future__ import annotations

import concurrent.futures
import errno
import json
import weakref
from collections.abc import Mapping
from typing import Callable, Iterator

import torch

from .._errors import error
from ..torch._misfit import some
from . import _flat
from ._flat import Layout, Views
from ._mesh import Mesh
from ._window import Meeting, Window


class Ticket:
    """A call that runs in a thread."""

    def __init__(self, future: concurrent.futures.Future):
        self._future = future

    def done(self) -> bool:
        """True once it is over, with or without an error."""
        return self._future.done()

    def wait(self) -> None:
        """Waits for its end. Its error is raised here, as the call would have raised it."""
        self._future.result()


class Flat(Mapping):
    """
    One rank's parameters and buffers in one range of memory, beside the ranges of the other ranks: a mapping of each
    name to its tensor. flatten() makes it.

    module  the module; None for a rank that has none
    mesh    the ranks
    buffer  the range: bytes of all tensors, then of the gradients

    sync_from(), average_grads() and average_params() are collectives: all ranks call them, in the same order. Sums are
    fp32, in the order of ranks, and then times 1 / n: all ranks get the same bits. With async_op=True they return a
    Ticket at once; until its wait() the parameters (average_grads(): the gradients) must not be used. Calls are done one
    after the other. They raise RankDied and Timeout, after which the ranges are undefined, and each later call fails:
    start the program again. Error: a parameter is no view any more, as of verify(). Ctrl-C waits for the end of a call.
    """

    def __init__(self, module: torch.nn.Module | None, mesh: Mesh, window: Window, views: Views, has_values: list[bool]):
        self.module, self.mesh = module, mesh
        self.buffer = window.flat()
        self._window, self._views, self._has_values = window, views, has_values
        self._layout = views.layout
        self._names = dict(_flat.names_of(self._layout.rows))
        self._worker: concurrent.futures.ThreadPoolExecutor | None = None
        self._last: concurrent.futures.Future | None = None  # the newest ticket's
        self._counts = _flat.section_of(self.buffer, self._layout.counts)
        self._gradients = {i: _flat.view_of(self.buffer, offset, self._layout.rows[i])
                           for i, offset in self._layout.gradients.items()}
        this = weakref.ref(self)
        for index in self._gradients if module is not None else ():
            views.parameters[index].register_post_accumulate_grad_hook(_hook(this, index))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views.tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __reduce__(self):
        raise TypeError("a flat range is memory of one rank in one process, and cannot be copied or pickled")

    # --- Calls of all ranks -----------------------------------------------------------------------

    def sync_from(self, rank: int = 0, *, async_op: bool = False) -> Ticket | None:
        """
        Parameters and buffers of all ranks become those of `rank`, byte by byte, whatever their types; gradients stay.
        Each rank reads and writes 1 / n of the bytes for all. ValueError: no such rank, or one that has no values yet.
        """
        if not 0 <= rank < self.mesh.size:
            raise ValueError(f"there is no rank {rank}: the mesh has {self.mesh.size} ranks")
        if not self._has_values[rank]:
            raise ValueError(f"rank {rank} has no values to give: its module was on the meta device, or it has none; "
                             f"ranks with values: {some([str(i) for i, has in enumerate(self._has_values) if has])}")
        self._views.gather()
        self._has_values = [True] * self.mesh.size
        return self._run(lambda: self._sync(rank), async_op)

    def average_params(self, *, async_op: bool = False) -> Ticket | None:
        """
        Trained parameters of all ranks become their mean. Frozen ones and buffers stay as they are in each rank. For
        float32 and bfloat16; bfloat16 is rounded after the sum and after the mean. Error, by name: parameters of other
        types; a rank that has no values yet.
        """
        self._layout.refuse_others("average_params()")
        empty = [str(rank) for rank, has in enumerate(self._has_values) if not has]
        if empty:
            raise error(errno.ENODATA, f"rank {some(empty)} has no values yet, which the mean would count as zeros; call "
                        "sync_from(rank) first")
        self._views.verify()
        return self._run(self._average_params, async_op)

    def average_grads(self, *, weight: float | None = None, async_op: bool = False) -> Ticket | None:
        """
        Gradients of all ranks become their mean; p.grad is a view of it then, in every rank, for any optimizer and for
        torch.nn.utils.clip_grad_norm_(). A parameter without a gradient counts zeros, and without one on any rank it keeps
        None. For float32 and bfloat16, as average_params().

        weight  of this rank in the mean, such as its number of samples: sum(weight * gradient) / sum(weight); of all
                ranks or of none. ValueError: negative, or 0 on all ranks
        """
        self._layout.refuse_others("average_grads()")
        if weight is not None and not 0 <= weight < float("inf"):
            raise ValueError(f"weight is {weight}; it must be a number that is not negative")
        if self.module is None:
            raise error(errno.EINVAL, "this rank has no module, and so no gradients; pass flatten() a module, which may be "
                        "on the meta device")
        self._views.verify()
        return self._run(lambda: self._average_grads(weight), async_op)

    def verify(self) -> None:
        """
        Checks that each parameter and buffer of the module is the view that flatten() made: same storage, offset, extent
        and type, no overlaps, tied names one tensor. Error: the first one that is not, by name. Not a collective.
        """
        self._views.verify()

    # --- Their work, in this thread or another ------------------------------------------------------

    def _run(self, work: Callable[[], None], async_op: bool) -> Ticket | None:
        self._window.use()
        if not async_op and (self._last is None or self._last.done()):
            work()
            return None
        if self._worker is None:
            self._worker = concurrent.futures.ThreadPoolExecutor(1, "weightd-flat")
        self._last = self._worker.submit(work)
        ticket = Ticket(self._last)
        return ticket if async_op else ticket.wait()

    def _sync(self, rank: int) -> None:
        self._window.broadcast(0, self._layout.n_bytes, rank)
        self._views.has_written(range(len(self._layout.rows)))

    @torch.no_grad()
    def _average_params(self) -> None:
        for section in self._layout.parameter_sections:
            self._window.all_reduce(section.offset, section.n, section.dtype)
            _flat.section_of(self.buffer, section).mul_(1.0 / self.mesh.size)
        self._views.has_written(self._layout.trained)

    @torch.no_grad()
    def _average_grads(self, weight: float | None) -> None:
        self._prepare(weight)
        self._window.all_reduce(self._layout.counts.offset, self._layout.counts.n, "F32")
        *counts, total = self._counts.tolist()
        if not total:
            raise ValueError("the weights of all ranks are 0: there is no mean")
        for section in self._layout.gradient_sections:
            gradient = _flat.section_of(self.buffer, section)
            if weight == 0:
                gradient.zero_()  # whatever is in there, which need not be finite
            elif weight is not None:
                gradient.mul_(weight)
            self._window.all_reduce(section.offset, section.n, section.dtype)
            gradient.mul_(1.0 / total)
        for count, index in zip(counts, self._layout.trained):
            self._views.parameters[index].grad = self._gradients[index] if count else None

    def _prepare(self, weight: float | None) -> None:
        """Gradients that backward did not make are zeros, and not counted."""
        for i, index in enumerate(self._layout.trained):
            parameter = self._views.parameters[index]
            self._counts[i] = float(parameter.grad is not None)
            if parameter.grad is None:
                self._gradients[index].zero_()
            else:
                self._take(index, parameter)
        self._counts[-1] = 1.0 if weight is None else weight

    def _take(self, index: int, parameter: torch.nn.Parameter) -> None:
        """p.grad becomes a view of the range: autograd adds later micro-batches in place."""
        grad, view = parameter.grad, self._gradients[index]
        if grad is None or grad is view:
            return
        if grad.layout != torch.strided or grad.requires_grad:
            parameter.grad = None
            name = self._layout.rows[index].name
            raise error(errno.EOPNOTSUPP, f"{name}: its gradient is sparse; torch.nn.Embedding(..., sparse=False) makes a "
                        "dense one" if grad.layout != torch.strided else
                        f"{name}: backward(create_graph=True) made a gradient with a graph of its own; take second "
                        "derivatives by torch.autograd.grad()")
        view.copy_(grad)
        parameter.grad = view


def _hook(this: weakref.ref[Flat], index: int):
    def take(parameter: torch.nn.Parameter) -> None:
        flat = this()
        if flat is not None:
            flat._take(index, parameter)

    return take


def flatten(module: torch.nn.Module | None, mesh: Mesh, *, job: str | None = None,
            deadline: float | None = 0.0) -> Flat:
    """
    Makes all parameters and buffers of a module views of one flat range, which each rank of a mesh has, for training with
    any optimizer of torch: the range is copied from one rank to all, or averaged, in one call.

        flat = weightd.train.flatten(module, mesh)
        optimizer = torch.optim.AdamW(module.parameters())
        flat.sync_from(0)
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            flat.average_grads()
            optimizer.step()

    module    Parameter objects stay the same, so that an optimizer may be made before. Values move tensor by tensor, so that
              no rank holds the model twice. On the meta device: values arrive by sync_from(). None: the layout, and the
              names of the tensors, are those of the first rank that has a module; this rank's are flat["layer.weight"]
    job       a name for the job in which the ranks meet; None: see weightd.train. That job ends once they have met: ranks
              that `weightctl train run` starts again need a name, as $WEIGHTD_JOB names none then
    deadline  seconds for another rank to arrive; None: for ever; 0: 30 s

    Memory: one range each, with the parameters, the buffers, and the gradients in float32 or bfloat16; shard()
    is for modules of which the ranks share one copy. The job ends with its ranks and is never resumed. A forked child, such as
    a worker of a DataLoader, has not mapped the ranges, and must not read the module.

    LayoutMismatch: the module of another rank differs, by the first tensor, before anything moves. Error: a mesh of
    several nodes. ValueError, by name: tensors on a GPU, sparse ones, two over one memory, a module in a job; no
    parameters; no module on any rank. RankDied, Timeout.
    """
    if mesh.n_nodes > 1:
        raise error(errno.EOPNOTSUPP, "flatten() is for the ranks of one machine, whose memory they share, and the "
                    f"mesh has {mesh.n_nodes}; shard() trains on several, with sync_every= for averages of parameters")
    found = _flat.rows_of(module) if module is not None else []
    bare = [row.name for row, held in found if held.tensor.is_meta]
    if bare and len(bare) < len(found):
        _refuse_half_meta([(row, held) for row, held in found if not held.tensor.is_meta])
    with Meeting(mesh, job, deadline) as meeting:
        layout, has_values = _agree(meeting, mesh, [row for row, _ in found], bool(found) and not bare)
        window = meeting.open(layout.size, deadline)
    views = Views(layout, window.flat(), [held for _, held in found])
    return Flat(module, mesh, window, views, has_values)


def _refuse_half_meta(there: list) -> None:
    """Buffers may have values; parameters have them all or none."""
    parameters = [row.name for row, _ in there if row.kind != "buffer"]
    if parameters:
        raise ValueError(f"{some(parameters)}: not on the meta device, as other parameters are; make the whole module "
                         "there, or none of it")


def _agree(meeting: Meeting, mesh: Mesh, rows: list[_flat.Row], has_values: bool) -> tuple[Layout, list[bool]]:
    """The layout of the first rank that has a module, and the ranks with values."""
    heads = [json.loads(head) for head in meeting.exchange(json.dumps([bool(rows), has_values]).encode())]
    source = next((rank for rank, (has_module, _) in enumerate(heads) if has_module), None)
    if source is None:
        raise ValueError("no rank has a module; one of them has to pass flatten() its layout")
    layout = Layout.from_json(meeting.exchange(Layout(rows).to_json() if mesh.rank == source else b"")[source])
    ours = _flat.difference(rows, layout.rows, source) if rows else ""
    sentences = [sentence.decode() for sentence in meeting.exchange(ours.encode())]
    for rank, sentence in enumerate(sentences):
        if ours or sentence:
            raise error(errno.EPROTOTYPE, "the ranks have different modules: " + (ours or f"rank {rank}: {sentence}"))
    return layout, [has for _, has in heads]
