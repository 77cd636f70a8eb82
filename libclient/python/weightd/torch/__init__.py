"""
Modules of torch on flat buffers.

    with weightd.torch.meta_parameters():                   # parameters hold no values, buffers do
        model = Model()
    weightd.torch.bind(model, weightd.attach("llama-8b"))   # parameters are the shared memory

    flat = weightd.torch.flat(model, "mine")                # parameters are a new, writable flat buffer
    ...                                                     # fill or train them
    flat.publish()

    with weightd.create("mine", layout, device="cuda:0") as writer:
        weightd.torch.fill(writer, model.state_dict())      # from GPU to GPU, on the current stream
        weightd.torch.publish(writer)                       # behind it

The role of a tensor in the module counts, not that in the loaded file: a parameter is shared, a persistent buffer
(running statistics) is state of which each module has its own copy, unless bind() shares it. Buffer.swap() and its
like update these copies.
Non-persistent buffers are in no state_dict and in no layout; nor is extra state (get_extra_state()), which is
the caller's to save.

Names are those of the module's state_dict. Where a buffer has others, names= makes them of the module's:

    weightd.torch.bind(torch.compile(model), buffer, names={"_orig_mod.": ""})
    weightd.torch.fill(writer, ddp.state_dict(), names=lambda name: name.removeprefix("module."))
    missing, unexpected = weightd.torch.bind(model, buffer, strict=False)   # as load_state_dict() does

Tensors that are not plain are refused by name before anything changes. Of a fully_shard'ed module, layout_of() gives
the layout of the whole one, and fill() takes what full_tensor() returns, on all ranks, of each of its DTensors;
bind() and flat() come before fully_shard().

Torch knows no read-only memory: a write to a parameter of a published version ends in SIGSEGV, which guard()
explains. load_state_dict() of a module is refused before that (Denied), but for one of TorchScript.

On a GPU all of this is the same, with tensors of device "cuda". Their memory is weightd's, not that of torch's
allocator: its settings (PYTORCH_CUDA_ALLOC_CONF, expandable_segments) do not apply, and torch.cuda.empty_cache()
does not free it; Buffer.close() and release() do.
"""
from ._bind import bind, refresh
from ._bound import Bound, is_bound
from ._flat import Flat, flat
from ._guard import guard
from ._layout import layout_of
from ._meta import meta_parameters
from ._names import IncompatibleKeys
from ._writer import fill, publish

__all__ = ["Bound", "Flat", "IncompatibleKeys", "bind", "fill", "flat", "guard", "is_bound", "layout_of",
           "meta_parameters", "publish", "refresh"]
