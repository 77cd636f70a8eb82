"""The flat range of one rank: where the tensors of a module lie in it, and the module as views of it."""
from __future__ import annotations

import errno
import json
import math
from typing import Iterator, NamedTuple

import torch

from .. import _dtype
from .._errors import error
from ..torch._kinds import describe_plain
from ..torch._misfit import some
from ..torch._overlap import refuse_overlaps
from ..torch._places import Held, contents_of, install, successor
from ._trainer import is_in_job
from ._window import LINE

SUMMED = ("F32", "BF16")  # types that averages have


class Row(NamedTuple):
    """
    A tensor of the layout.

    names  of the tensor; several are tied
    kind   "param": trained; "frozen": a parameter that is not; "buffer"
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    kind: str

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, _dtype.TORCH[self.dtype])

    @property
    def torch_shape(self) -> tuple[int, ...]:
        return _dtype.packed(self.shape, self.dtype)

    @property
    def n_bytes(self) -> int:
        return math.prod(self.torch_shape) * self.torch_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.dtype} {list(self.shape)})"


class Section(NamedTuple):
    """Elements [0, n) from byte `offset` on that one collective sums."""

    offset: int
    n: int
    dtype: str


class Layout:
    """
    Places in the range of a rank, equal on all: trained parameters of each type, the other tensors, the gradients of
    each type, and a word for each trained parameter that counts the ranks with a gradient, and one for weights.

    rows       all tensors
    offsets    of the rows, in bytes
    gradients  offset of the gradient, by the index of the row; of types in SUMMED alone
    size       bytes of the range
    """

    def __init__(self, rows: list[Row]):
        self.rows, self.offsets, self._end = rows, [0] * len(rows), 0
        self.gradients: dict[int, int] = {}
        self.parameter_sections: list[Section] = []
        self.gradient_sections: list[Section] = []
        for dtype in SUMMED:
            self._add_section(dtype, self.parameter_sections, self.offsets)
        for index, row in enumerate(rows):
            if not self._is_summed(row):
                self._place(index, row, self.offsets)
        self.n_bytes = self._end  # parameters and buffers
        for dtype in SUMMED:
            self._add_section(dtype, self.gradient_sections, self.gradients)
        self.trained = [index for index, row in enumerate(rows) if row.kind == "param"]
        self.counts = Section(self._end, len(self.trained) + 1, "F32")
        self.size = _aligned(self._end + 4 * self.counts.n)

    @staticmethod
    def _is_summed(row: Row) -> bool:
        return row.kind == "param" and row.dtype in SUMMED

    def _place(self, index: int, row: Row, places) -> None:
        places[index], self._end = self._end, _aligned(self._end + row.n_bytes)

    def _add_section(self, dtype: str, sections: list[Section], places) -> None:
        start = self._end
        for index, row in enumerate(self.rows):
            if row.dtype == dtype and self._is_summed(row):
                self._place(index, row, places)
        if self._end > start:
            size = getattr(torch, _dtype.TORCH[dtype]).itemsize
            sections.append(Section(start, (self._end - start) // size, dtype))

    def refuse_others(self, what: str) -> None:
        """Error: a trained parameter of a type without averages."""
        others = [f"{row.name} ({row.dtype})" for row in self.rows if row.kind == "param" and row.dtype not in SUMMED]
        if others:
            raise error(errno.EOPNOTSUPP, f"{some(others)}: {what} is for parameters in float32 and bfloat16; convert "
                        "them (module.float()) before flatten(), or freeze them (requires_grad_(False))")

    def to_json(self) -> bytes:
        return json.dumps(self.rows).encode()

    @staticmethod
    def from_json(text: bytes) -> Layout:
        return Layout([Row(tuple(names), dtype, tuple(shape), kind) for names, dtype, shape, kind in json.loads(text)])


def _aligned(size: int) -> int:
    return -(-size // LINE) * LINE


def difference(ours: list[Row], theirs: list[Row], rank: int) -> str:
    """The first difference to the layout of another rank, as a sentence; "" if there is none."""
    for our, their in zip(ours, theirs):
        if our != their:
            tied = "" if our._replace(names=()) != their._replace(names=()) or our.name != their.name else \
                f"; tied names are {list(our.names)} here and {list(their.names)} there"
            return f"{our} is {their} on rank {rank}{tied}"
    if len(ours) != len(theirs):
        longer, where = (ours, "here") if len(ours) > len(theirs) else (theirs, f"on rank {rank}")
        return f"{longer[min(len(ours), len(theirs))]} is {where} alone"
    return ""


class Place(NamedTuple):
    """An attribute of a module that has to stay a view of the range."""

    index: int
    owner: torch.nn.Module
    attribute: str
    tensor: torch.Tensor


class Views:
    """
    The tensors of one rank as views of its range.

    tensors     by row; those of the module, if there is one
    parameters  the trained ones, by the index of the row; empty without a module
    """

    def __init__(self, layout: Layout, flat: torch.Tensor, held: list[Held]):
        """`held`: the tensors of a module, in the order of the rows; [] without one. Their values are copied into the range."""
        self.layout, self._flat = layout, flat
        self.tensors = [view_of(flat, layout.offsets[i], row) for i, row in enumerate(layout.rows)]
        self._places: list[Place] = []
        self._install(held)
        self.parameters = {i: self.tensors[i] for i in layout.trained} if held else {}

    def _install(self, held: list[Held]) -> None:
        made = []
        with torch.inference_mode(False), torch.no_grad():
            for index, found in enumerate(held):
                member, view = found.members[0], self.tensors[index]
                if not member.tensor.is_meta:
                    view.copy_(member.tensor)
                if member.role == "param":
                    if member.tensor.is_meta:
                        self.tensors[index] = successor(member, view, member.tensor.requires_grad)
                        made.append((member, self.tensors[index]))
                    else:
                        member.tensor.data = view
                        self.tensors[index] = member.tensor
                self._places += [Place(index, owner, attribute, self.tensors[index])
                                 for owner, attribute in member.places]
            install(made)
        for place in self._places:
            if place.attribute in place.owner._buffers:
                place.owner._buffers[place.attribute] = place.tensor

    def verify(self) -> None:
        """Error: the first tensor of the module that is no view of the range any more, and why."""
        for place in self._places:
            why = self._lost(place)
            if why:
                raise error(errno.EINVAL, f"{self.layout.rows[place.index].name}: no view of the flat range any more: "
                            f"{why}. load_state_dict(assign=True), to(), bfloat16(), share_memory() and assignments "
                            "replace it; do that before flatten()")
        self._refuse_overlap()

    def _lost(self, place: Place) -> str:
        now = place.owner._parameters.get(place.attribute)
        now = place.owner._buffers.get(place.attribute) if now is None else now
        row, offset = self.layout.rows[place.index], self.layout.offsets[place.index]
        if now is None:
            return f"the module has no '{place.attribute}'"
        if now.dtype != row.torch_dtype or tuple(now.shape) != row.torch_shape:
            return f"it is {now.dtype} {list(now.shape)} now"
        if not now.numel():
            return ""
        if now.untyped_storage().data_ptr() != self._flat.data_ptr():
            return "its memory is another"
        if now.data_ptr() - self._flat.data_ptr() != offset or not now.is_contiguous():
            return f"it begins at byte {now.data_ptr() - self._flat.data_ptr()} of the range, not at {offset}"
        if now is not place.tensor:
            return "it is another tensor over the same memory, which its optimizer and its tied names have not got"
        return ""

    def _refuse_overlap(self) -> None:
        """Each is where the layout has it: so two overlap if their places do."""
        spans = sorted((offset, offset + row.n_bytes, row.name) for offset, row in zip(self.layout.offsets,
                                                                                       self.layout.rows))
        for (_, end, name), (start, _, other) in zip(spans, spans[1:]):
            if start < end:
                raise error(errno.EINVAL, f"{name} and {other} overlap in the flat range")

    def gather(self) -> None:
        """
        Before a copy to others: a module may have assigned another tensor to a buffer instead of writing to it. Error: a
        parameter is lost, or a buffer of another form.
        """
        for place in self._places:
            now = place.owner._buffers.get(place.attribute)
            if now is None or now is place.tensor or now.shape != place.tensor.shape or now.dtype != place.tensor.dtype:
                continue
            with torch.no_grad():
                place.tensor.copy_(now)
            place.owner._buffers[place.attribute] = place.tensor
        self.verify()

    def has_written(self, indices) -> None:
        """After values have changed without torch: a backward pass through the old ones fails, in torch's words."""
        for index in indices:
            torch.autograd.graph.increment_version(self.tensors[index])


def view_of(flat: torch.Tensor, offset: int, row: Row) -> torch.Tensor:
    """A tensor in the range, with a version counter of its own (.data)."""
    return flat[offset:offset + row.n_bytes].view(row.torch_dtype).view(row.torch_shape).data


def section_of(flat: torch.Tensor, section: Section) -> torch.Tensor:
    kind = getattr(torch, _dtype.TORCH[section.dtype])
    return flat[section.offset:section.offset + section.n * kind.itemsize].view(kind).data


def rows_of(module: torch.nn.Module) -> list[tuple[Row, Held]]:
    """The tensors of a module, refused by name where they cannot be flat. ValueError."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise ValueError("a DistributedDataParallel has a copy and a reduction of its own; flatten() the module inside "
                         "(ddp.module)")
    contents = contents_of(module)
    refuse_overlaps(contents)
    found = [(Row(tuple(held.names or [held.members[0].where]), *describe_plain(held.members[0].where, held.tensor),
                  _kind_of(held)), held) for held in (*contents.held, *contents.others)]
    if not any(row.kind == "param" for row, _ in found):
        raise ValueError(f"{type(module).__name__} has no parameters to train")
    _refuse("on a GPU, where weightd.train has no memory yet; module.cpu() moves them",
            [f"{row.name} ({held.tensor.device})" for row, held in found
             if held.tensor.device.type not in ("cpu", "meta")])
    _refuse("several tensors over one memory; tie them as one object (b.weight = a.weight)",
            [" and ".join(member.where for member in held.members) for _, held in found if len(held.members) > 1])
    _refuse("in the memory of a job, which its optimizer alone writes; flatten() is for other optimizers",
            [row.name for row, held in found if is_in_job(held.tensor)])
    return found


def _kind_of(held: Held) -> str:
    if held.role == "buffer":
        return "buffer"
    return "param" if held.tensor.requires_grad else "frozen"


def _refuse(why: str, names: list[str]) -> None:
    if names:
        raise ValueError(f"{some(names)}: {why}")


def names_of(rows: list[Row]) -> Iterator[tuple[str, int]]:
    """Each name with the index of its row."""
    return ((name, index) for index, row in enumerate(rows) for name in row.names)
