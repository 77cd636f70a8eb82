"""
Models of transformers in buffers of weightd.

    model = weightd.hf.from_pretrained("llama")             # the parameters are the shared memory
    weightd.hf.publish(model, "llama-made", tokenizer)      # the next version, as the model computes
    replica = weightd.hf.from_pretrained("llama-made")      # copies nothing

A program that only needs a path has no use for this module: see weightd.model_dir().
"""
from __future__ import annotations

import contextlib
import copy
import errno
import logging
import os
import tempfile
from collections.abc import Mapping
from typing import Any, Iterator, NamedTuple

import torch
import transformers

from ._buffer import Buffer, attach
from ._errors import LayoutMismatch, error
from ._writer import create
from .torch import bind, fill, layout_of, meta_parameters
from .torch import publish as publish_writer
from .torch._kinds import describe
from .torch._misfit import some

__all__ = ["Loaded", "from_pretrained", "publish"]

_MODULE = "module"  # attribute: the class that names the tensors as the version does, in its state_dict
_CONFIG, _GENERATION = "config.json", "generation_config.json"
_logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """
    How a model uses a version.

    buffer        the Buffer: buffer.swap() moves the model to the newest version
    shared_bytes  of parameters in the memory of the buffer
    copied_bytes  of tensors that this process has alone: transformers made them of several tensors, or in another type,
                  or they are persistent buffers, which bind() copies
    copied        the names of these tensors in the model
    """

    buffer: Buffer
    shared_bytes: int
    copied_bytes: int
    copied: list[str]


def from_pretrained(name: str, cls: type | None = None, version: int | None = None, timeout: float | None = 0.0,
                    strict: bool = True, output_loading_info: bool = False, config: Any = None,
                    socket: str | None = None, owner: int | str | None = None, **options: Any) -> Any:
    """
    Returns a model of transformers, in eval mode, on a version in host memory. Its parameters are the shared memory:
    they need no gradient, and a write to one ends in SIGSEGV, which weightd.torch.guard() explains. Adapters train
    beside them.

    Tensors that transformers uses as they are in the version are shared. Those that it renames are, too. It makes
    others anew, such as the experts of a Mixtral, which it fuses: each process has a copy of these. A version of
    publish() has the tensors of the model itself, and nothing is copied.

    cls                  a class of transformers, also an Auto class; None: that of the "architectures" in config.json
    version, timeout     as in attach(), and so are socket and owner
    strict               False: tensors that the version lacks get new values, as a head for another task
    output_loading_info  also return the dict of transformers, with a Loaded under "weightd"
    config               a configuration of transformers; None: the version's config.json
    options              of from_pretrained() of transformers

    The number of copied bytes is logged (logger "weightd.hf"). LayoutMismatch: the version lacks tensors of the class;
    and errors of attach(). Error: the version has no config.json.
    """
    buffer = attach(name, version=version, timeout=timeout, socket=socket, owner=owner)
    config, generation = _configurations(buffer, config)
    cls = _class_of(config, cls)
    if buffer.attributes.get(_MODULE) == cls.__name__ and not options:
        model, info = _bind(buffer, cls, config, generation), {}
    else:
        model, info = _convert(buffer, cls, config, generation, strict, options)
    loaded = _measure(model, buffer)
    _logger.info("'%s@%d': %s shares %d bytes, and copied %d%s", buffer.name, buffer.version, cls.__name__,
                 loaded.shared_bytes, loaded.copied_bytes, f": {some(loaded.copied)}" if loaded.copied else "")
    return (model, info | {"weightd": loaded}) if output_loading_info else model


def publish(model: transformers.PreTrainedModel, name: str, tokenizer: Any = None,
            attributes: Mapping[str, Any] | None = None, **options: Any) -> int:
    """
    Copies the tensors of a model to the next version of buffer `name`, publishes it and returns its number. Beside the
    weights are the configurations of the model, which from_pretrained() and a model directory need, and the files of
    `tokenizer`, or of anything else that has save_pretrained(). Other files stay those of the newest version. The model
    stays as it is, also its parameters; weightd.torch.flat() moves them instead.

    `attributes` add to those of the newest version and to "architecture", "dtype" and "producer". `options` and errors
    as in create() and weightd.torch.fill(). TypeError: no model of transformers, as the wrapper of an adapter.
    """
    if not isinstance(model, transformers.PreTrainedModel):
        raise TypeError(f"a {type(model).__name__} is no model of transformers; publish the model inside of it, or use "
                        "weightd.torch.flat()")
    files = _files_of(model, tokenizer)
    mine = {"architecture": type(model).__name__, "dtype": describe("", torch.empty(0, dtype=model.dtype))[0],
            "producer": f"transformers {transformers.__version__}", _MODULE: type(model).__name__}
    with create(name, layout_of(model), **options) as writer:
        fill(writer, model.state_dict())
        writer.files = {**writer.files, **files}
        writer.attributes = {**writer.attributes, **mine, **(attributes or {})}
        return publish_writer(writer)


# --- Configurations ------------------------------------------------------------------------------------


def _configurations(buffer: Buffer, config: Any) -> tuple[Any, Any]:
    """That of the model, which is the caller's alone, and that of its generation, or None."""
    wanted = [name for name in (_CONFIG, _GENERATION) if name in buffer.files]
    with _folder({name: buffer.files[name] for name in wanted}) as folder:
        if config is None and _CONFIG not in wanted:
            raise error(errno.ENODATA, f"'{buffer.name}@{buffer.version}' has no config.json beside its weights; load it "
                                       "with its directory (weightctl load NAME DIRECTORY), or pass config=")
        found = transformers.AutoConfig.from_pretrained(folder) if config is None else copy.deepcopy(config)
        generation = transformers.GenerationConfig.from_pretrained(folder) if _GENERATION in wanted else None
    return found, generation


def _files_of(model: transformers.PreTrainedModel, tokenizer: Any) -> dict[str, bytes]:
    """As save_pretrained() of all three writes them."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = model.dtype
    with _folder({}) as folder:
        config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        return {os.path.relpath(os.path.join(parent, name), folder): _read(os.path.join(parent, name))
                for parent, _, names in os.walk(folder) for name in names}


@contextlib.contextmanager
def _folder(files: Mapping[str, bytes]) -> Iterator[str]:
    """A folder with these files, for functions that take nothing else."""
    with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
        for name, data in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        yield folder


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _class_of(config: Any, cls: type | None) -> type:
    if cls is None:
        names = getattr(config, "architectures", None) or []
        found = next((kind for kind in (getattr(transformers, name, None) for name in names) if kind), None)
        cls = found or transformers.AutoModel
    if issubclass(cls, transformers.PreTrainedModel):
        return cls
    with torch.device("meta"):  # an Auto class shows its choice by the model that it makes
        return type(cls.from_config(copy.deepcopy(config)))


# --- Models --------------------------------------------------------------------------------------------


def _bind(buffer: Buffer, cls: type, config: Any, generation: Any) -> transformers.PreTrainedModel:
    """A model that needs the very tensors of the version."""
    with meta_parameters():
        model = cls._from_config(config)
    bind(model, buffer)
    if generation is not None:
        model.generation_config = generation
    return model.eval()


def _convert(buffer: Buffer, cls: type, config: Any, generation: Any, strict: bool,
             options: dict[str, Any]) -> tuple[transformers.PreTrainedModel, dict[str, Any]]:
    """A model that transformers makes of the tensors of the version, and its report."""
    views = {name: tensor.torch() for name, tensor in buffer.items()}
    model, info = cls.from_pretrained(None, config=config, state_dict=views, generation_config=generation,
                                      output_loading_info=True, **options)
    missing = sorted(info["missing_keys"])
    if strict and missing:
        raise LayoutMismatch(errno.EPROTOTYPE, f"'{buffer.name}@{buffer.version}' does not fit {cls.__name__}: missing in "
                                               f"the buffer: {some(missing)} (strict=False gives these new values)")
    found = _unchanged(model, views)
    if found:
        bind(model, buffer, strict=False, names=lambda name: found.get(name, ""))
    return model, info


def _unchanged(model: torch.nn.Module, views: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The names in the buffer of tensors that the model has as they are there, by their names in the model."""
    def place(tensor: torch.Tensor) -> tuple:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()

    names = {place(view): name for name, view in views.items() if view.numel()}
    return {name: names[place(tensor)] for name, tensor in model.state_dict(keep_vars=True).items()
            if isinstance(tensor, torch.Tensor) and tensor.numel() and place(tensor) in names}


def _measure(model: torch.nn.Module, buffer: Buffer) -> Loaded:
    memory = buffer._memory
    shared, copied = {}, {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and not tensor.is_meta and tensor.numel():
            is_shared = 0 <= tensor.data_ptr() - memory.address < memory.size
            (shared if is_shared else copied)[tensor.data_ptr()] = name, tensor.numel() * tensor.element_size()
    return Loaded(buffer, sum(size for _, size in shared.values()), sum(size for _, size in copied.values()),
                  [name for name, _ in copied.values()])
