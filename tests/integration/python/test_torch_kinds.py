"""weightd.torch and tensors that are not plain: taken as they are, or refused by name before anything changes."""
import contextlib
import warnings

import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch

    class Scaled(torch.Tensor):
        """Like torchao's tensors: codes and a scale, with the dtype float32."""

        @staticmethod
        def __new__(cls, codes, scale):
            return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

        def __init__(self, codes, scale):
            self.codes, self.scale = codes, scale

        def __tensor_flatten__(self):
            return ["codes", "scale"], None

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            if function.overloadpacket is torch.ops.aten.detach:
                return cls(args[0].codes, args[0].scale)
            raise NotImplementedError(f"{function} of Scaled")

    class Sharded(torch.nn.Parameter):
        """As frameworks derive it: with attributes, on a plain memory."""

        shard = 0

    class Net(torch.nn.Module):
        """The parameter that can be `odd` is the last."""

        def __init__(self, odd=None, device=None):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4, device=device)
            self.batch = torch.nn.BatchNorm1d(4, device=device)
            if isinstance(odd, torch.nn.Module):
                self.odd = odd
            else:
                self.register_buffer("odd", torch.ones(4, 4, device=device) if odd is None else odd)


@contextlib.contextmanager
def process_group(tmp_path):
    """One process, no network."""
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield distributed
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def mesh(tmp_path):
    device_mesh = pytest.importorskip("torch.distributed.device_mesh", reason="no DeviceMesh in this torch")
    with process_group(tmp_path):
        yield device_mesh.init_device_mesh("cpu", (1,))


def fake(*_):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4, 4)


def distributed(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])


def quantized(*_):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.quint8)


def nested(*_):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(4), torch.ones(3)])


# its maker, the words of the error about it, and True if weightd has a layout for it all the same
ODD = {
    "sparse": (lambda _: torch.eye(4).to_sparse(), r"odd: weightd has no tensors in layout torch.sparse_coo.*to_dense",
               False),
    "quantized": (quantized, r"odd: weightd has no torch.quint8.*dequantize", False),
    "complex128": (lambda _: torch.ones(4, 4, dtype=torch.complex128), r"odd: weightd has no torch.complex128", False),
    "nested": (nested, r"odd: a nested tensor is not one plain memory", False),
    "subclass": (lambda _: Scaled(torch.ones(4, 4, dtype=torch.int8), torch.ones(())),
                 r"odd: a Scaled is not one plain memory; .*dequantize\(\).*parts \(codes, scale\)", False),
    "fake": (fake, r"odd: a FakeTensor has no values; build the module on the meta device", True),
    "DTensor": (distributed, r"odd: a DTensor, .*full_tensor\(\), a collective.*fully_shard", True)}


@pytest.fixture(params=ODD)
def odd(request, weightd):
    make, says, has_layout = ODD[request.param]
    return make(request.getfixturevalue("mesh") if request.param == "DTensor" else None), says, has_layout


def publish(weightd, value=1.0, name="m"):
    with weightd.create(name, weightd.torch.layout_of(Net())) as writer:
        for tensor in writer.values():
            tensor.torch().fill_(value)
        writer.publish()
    return weightd.attach(name)


def snapshot(module):
    return {name: (id(tensor), None if tensor is module.odd else tensor.tolist())
            for name, tensor in module.state_dict(keep_vars=True).items()}


# --- Refusals ----------------------------------------------------------------------------------------


def test_module_with_a_tensor_that_is_not_plain_is_refused_and_stays_as_it_was(weightd, odd):
    tensor, says, has_layout = odd
    module, buffer = Net(tensor), publish(weightd)
    before = snapshot(module)
    uses = [lambda: weightd.torch.bind(module, buffer), lambda: weightd.torch.refresh(module, buffer),
            lambda: weightd.torch.bind(module, buffer, strict=False), lambda: weightd.torch.flat(module, "n")]
    if has_layout:
        assert weightd.torch.layout_of(module).hash == weightd.torch.layout_of(Net()).hash
    else:
        uses.append(lambda: weightd.torch.layout_of(module))
    for use in uses:
        with pytest.raises(ValueError, match="^" + says):
            use()
        assert snapshot(module) == before
    assert [info.name for info in weightd.ls()] == ["m"]


def test_tensors_that_are_not_plain_fill_nothing(weightd, odd):
    state = Net().state_dict()
    with weightd.create("m", weightd.torch.layout_of(Net())) as writer:
        for strict in (True, False):
            with pytest.raises(ValueError, match="^" + odd[1]):
                weightd.torch.fill(writer, state | {"odd": odd[0]}, strict=strict)
            assert not any(writer.read())


def test_what_has_no_values_fills_nothing(weightd):
    state = Net().state_dict()
    with weightd.create("m", weightd.torch.layout_of(Net())) as writer:
        for value, error, says in (
                (torch.ones(4, 4, device="meta"), ValueError, "odd: on the meta device it has no values"),
                (torch.ones(4, 4).numpy(), TypeError, r"odd: numpy.ndarray is not a torch.Tensor; torch.as_tensor\(\)"),
                ([1.0], TypeError, "odd: builtins.list is not a torch.Tensor"),
                (writer["odd"], TypeError, "odd: weightd._tensor.Tensor is not a torch.Tensor")):
            with pytest.raises(error, match=says):
                weightd.torch.fill(writer, state | {"odd": value})
            assert not any(writer.read())
        weightd.torch.fill(writer, state)
        version = writer.publish()
        with pytest.raises(weightd.Denied, match=f"version {version}.*create"):
            weightd.torch.fill(writer, state)


def test_lazy_module_is_refused_until_it_has_shapes(weightd):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Net(torch.nn.LazyLinear(4))
    layout = weightd.torch.layout_of(Net(torch.nn.Linear(4, 4)))
    with weightd.create("m", layout) as writer:
        writer.publish()
    buffer = weightd.attach("m")
    for use in (lambda: weightd.torch.layout_of(module), lambda: weightd.torch.bind(module, buffer),
                lambda: weightd.torch.refresh(module, buffer), lambda: weightd.torch.flat(module, "n")):
        with pytest.raises(ValueError, match=r"^odd.weight: an uninitialized parameter has no shape; call"):
            use()
    module.odd(torch.ones(1, 4))
    assert weightd.torch.layout_of(module).hash == layout.hash
    assert weightd.torch.bind(module, buffer).odd.weight.sum() == 0


def test_sharded_module_is_refused_and_still_computes(weightd, mesh):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    layout, output = weightd.torch.layout_of(module), module(torch.ones(4))
    fsdp.fully_shard(module, mesh=mesh)
    with weightd.create("m", layout) as writer:
        with pytest.raises(ValueError, match="^0.weight: a DTensor"):
            weightd.torch.fill(writer, module.state_dict())
        weightd.torch.fill(writer, {name: part.full_tensor() for name, part in module.state_dict().items()})
        writer.publish()
    buffer = weightd.attach("m")
    assert all(torch.equal(buffer[name].torch(), tensor) for name, tensor in state.items())
    for _ in range(2):  # before and after a forward that gathers
        assert weightd.torch.layout_of(module).hash == layout.hash
        for use in (lambda: weightd.torch.bind(module, buffer), lambda: weightd.torch.flat(module, "n"),
                    lambda: weightd.torch.refresh(module, buffer)):
            with pytest.raises(ValueError, match="^0.weight: a DTensor"):
                use()
        assert torch.equal(module(torch.ones(4)), output)
    weightd.torch.bind(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), buffer)


def test_module_on_another_device_than_the_version_is_not_refreshed(weightd, monkeypatch):
    module, buffer = weightd.torch.bind(Net(), publish(weightd)), publish(weightd, 2)
    there = torch.ones(4, 4, device="meta")  # stands for a GPU, which torch lacks here
    monkeypatch.setattr(weightd.Tensor, "torch", lambda self: there)
    with pytest.raises(ValueError, match=r"^linear.weight \(cpu\).*bind\(\) the module to it"):
        weightd.torch.refresh(module, buffer)
    assert module.linear.weight.device.type == "cpu" and module.odd[0, 0] == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_module_that_takes_no_tensors_stays_as_it_was(weightd, device):
    class Locked(torch.nn.Linear):
        def __setattr__(self, name, value):
            if name == "bias" and "bias" in self.__dict__.get("_parameters", ()) and value is not self.bias:
                raise RuntimeError("locked")
            super().__setattr__(name, value)

    module = Net(Locked(4, 4, device=device), device)
    with weightd.create("m", weightd.torch.layout_of(module)) as writer:
        writer.publish()
    before = [id(tensor) for tensor in module.state_dict(keep_vars=True).values()]
    uses = [lambda: weightd.torch.bind(module, weightd.attach("m"))]
    if device == "meta":
        uses.append(lambda: weightd.torch.flat(module, "n"))
    for use in uses:
        with pytest.raises(RuntimeError, match="locked"):
            use()
        assert [id(tensor) for tensor in module.state_dict(keep_vars=True).values()] == before
    assert [info.name for info in weightd.ls()] == ["m"]


# --- Accepted kinds ----------------------------------------------------------------------------------


def test_inference_mode_changes_nothing(weightd):
    with torch.inference_mode():
        module = Net()
        assert module.linear.weight.is_inference() and module.odd.is_inference()
        bound = weightd.torch.bind(Net(), publish(weightd, 1))
        assert weightd.torch.refresh(bound, publish(weightd, 2)) == ([], [])
    assert not bound.linear.weight.is_inference() and not bound.odd.is_inference()
    parameter = module.linear.weight
    for value in (3, 4):
        weightd.torch.refresh(module, publish(weightd, value))
        assert module.linear.weight is parameter and (parameter == value).all() and (module.odd == value).all()
    with torch.inference_mode():
        values, module = Net().state_dict(), Net()
    with weightd.create("m", weightd.torch.layout_of(Net())) as writer:
        weightd.torch.fill(writer, values)
        assert torch.equal(writer["linear.weight"].torch(), values["linear.weight"])
    expected = module.linear.weight.tolist()
    flat = weightd.torch.flat(module, "n")
    assert flat["linear.weight"].torch().tolist() == expected
    module.load_state_dict(values)
    assert torch.equal(flat["linear.weight"].torch(), values["linear.weight"])


def test_expanded_buffer_is_refreshed(weightd):
    module = Net(torch.ones(1, 4).expand(4, 4))
    weightd.torch.refresh(module, publish(weightd, 2))
    assert (module.odd == 2).all() and (module.linear.weight == 2).all()
    flat = weightd.torch.flat(Net(torch.ones(1, 4).expand(4, 4)), "n")
    assert (flat["odd"].torch() == 1).all()


def test_conjugate_and_negative_views_and_strides_are_resolved(weightd):
    values = torch.view_as_complex(torch.arange(32.0).view(4, 4, 2))
    cases = {"conj": values.conj(), "neg": values.conj().imag, "transposed": values.t(), "step": values.real[::2]}
    assert cases["conj"].is_conj() and cases["neg"].is_neg()
    for name, tensor in cases.items():
        right = tensor.tolist()
        for value in (tensor, torch.nn.Parameter(tensor)):
            module = Net(value)
            with weightd.create("m", weightd.torch.layout_of(module), new_layout=True) as writer:
                weightd.torch.fill(writer, module.state_dict())
                assert writer["odd"].torch().tolist() == right, name
                writer.publish()
            flat = weightd.torch.flat(module, "m")
            assert flat["odd"].torch().tolist() == module.odd.tolist() == right, name
            flat.publish()
            module = weightd.torch.bind(Net(value), weightd.attach("m"))
            assert module.odd.tolist() == right, name
            weightd.torch.refresh(Net(value), weightd.attach("m"))


def test_parameters_that_need_gradients_are_read_and_refreshed(weightd):
    module = Net()
    with weightd.create("m", weightd.torch.layout_of(module)) as writer:
        weightd.torch.fill(writer, dict(module.named_parameters()) | dict(module.named_buffers()))
        writer.publish()
    module = weightd.torch.bind(Net(), weightd.attach("m")).requires_grad_()
    weightd.torch.refresh(module, publish(weightd, 2))
    assert module.linear.weight.requires_grad and (module.linear.weight == 2).all()
    module.linear(torch.ones(4)).sum().backward()
    assert module.linear.weight.grad.tolist() == [[1] * 4] * 4


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_class_and_attributes_of_parameters_stay(weightd, device):
    def net():
        module = Net(device=device)
        module.linear.weight = Sharded(module.linear.weight)
        module.linear.weight.shard = 3
        return module

    publish(weightd)
    for module in (weightd.torch.bind(net(), weightd.attach("m")), weightd.torch.flat(net(), "m").module):
        assert type(module.linear.weight) is Sharded and module.linear.weight.shard == 3
    assert module.linear.weight.requires_grad
