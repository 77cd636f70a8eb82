"""weightd.torch: modules on shared memory. In-process with one torch, and once more with the other."""
import errno
import os
import pathlib
import re
import signal
import subprocess
import sys
import warnings

import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
# Those with another outcome in the other interpreter, which is the same Python with another torch and another NumPy.
FILES = sorted(file.name for file in pathlib.Path(__file__).parent.glob("test_*.py")
               if re.search("torch|numpy|transformers", file.read_text()))
WIDTH, VOCABULARY = 8, 16

if HAS_TORCH:
    import torch

    class Block(torch.nn.Module):
        def __init__(self, device=None):
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH, device=device)
            self.linear = torch.nn.Linear(WIDTH, WIDTH, device=device)

        def forward(self, x):
            return x + torch.relu(self.linear(self.norm(x)))

    class Model(torch.nn.Module):
        """Tied tensors, a module under two names, state, an RNN, a buffer that is in no state_dict."""

        def __init__(self, device=None, dtype=torch.float32):
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, WIDTH, device=device)
            self.layers = torch.nn.ModuleList([Block(device), Block(device)])
            self.last = self.layers[1]
            self.rnn = torch.nn.LSTM(WIDTH, WIDTH, device=device)
            self.batch = torch.nn.BatchNorm1d(WIDTH, device=device)
            self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, device=device)
            self.head.weight = self.embed.weight
            self.scale = torch.nn.Parameter(torch.ones((), device=device))
            self.register_buffer("ramp", torch.arange(WIDTH).float(), persistent=False)
            self.to(dtype)

        def forward(self, tokens):
            x = self.embed(tokens) + self.ramp.to(self.scale.dtype)
            for layer in self.layers:
                x = self.last(layer(x))
            x = self.batch(self.rnn(x)[0]) * self.scale
            return self.head(x)


@pytest.fixture
def weightd(daemon, monkeypatch):
    features.require("library")
    features.require("torch")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    torch.manual_seed(1)
    import weightd.torch
    return weightd


def tokens():
    return torch.arange(12) % VOCABULARY


def publish(weightd, model, name="m", **options):
    """The values of an ordinary module as a version; the module stays as it is."""
    state = model.state_dict()
    with weightd.create(name, weightd.torch.layout_of(model), **options) as writer:
        for key, tensor in state.items():
            writer[key].torch().copy_(tensor)
        return writer.publish()


def base(buffer):
    first = next(tensor for tensor in buffer.values() if tensor.nbytes)  # torch gives the others no address
    return first.torch().data_ptr() - first.offset


# --- Tensors -----------------------------------------------------------------------------------------


def test_torch_tensor_is_the_shared_memory_itself(weightd):
    names = "F32", "F16", "BF16", "I64", "BOOL", "U8", "C64"
    kinds = "float32", "float16", "bfloat16", "int64", "bool", "uint8", "complex64"
    layout = weightd.Layout()
    for name, shape in zip(names, ((2, 3), (4,), (2, 2), (), (3,), (0, 4), (2,))):
        layout.add(name, name, shape)
    with weightd.create("m", layout) as writer:
        writer["BF16"].torch().fill_(1.5)
        writer["BOOL"].torch()[1] = True
        writer.publish()
    buffer = weightd.attach("m")
    address = base(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, kind in zip(names, kinds):
            tensor = buffer[name].torch()
            assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, kind), buffer[name].shape)
            assert tensor.data_ptr() == address + buffer[name].offset or not tensor.numel()
            assert tensor.is_contiguous()
    assert buffer["BF16"].torch().tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert buffer["BOOL"].torch().tolist() == [False, True, False]


def test_torch_takes_a_tensor_by_dlpack_without_a_copy(weightd):
    publish(weightd, Model(dtype=torch.bfloat16))
    buffer = weightd.attach("m")
    for tensor in buffer.values():
        taken = torch.from_dlpack(tensor)
        assert taken.data_ptr() == tensor.torch().data_ptr() and taken.dtype == tensor.torch().dtype
        assert torch.equal(taken, tensor.torch())
    address = taken.data_ptr()
    del tensor
    buffer.close()
    assert weightd.ping().n_leases == 1 and taken.data_ptr() == address
    del taken
    assert weightd.ping().n_leases == 0


def test_torch_takes_the_small_types_by_dlpack_as_far_as_it_knows_them(weightd):
    kinds = {"F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
             "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"}
    layout = weightd.Layout()
    for name in kinds:
        layout.add(name, name, (2, 8))
    with weightd.create("m", layout) as writer:
        for tensor in writer.values():
            tensor.write(bytes(range(tensor.nbytes)))
        writer.publish()
    knows = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
    for tensor in weightd.attach("m").values():
        taken = torch.from_dlpack(tensor)
        assert taken.dtype == getattr(torch, kinds[tensor.dtype] if knows else "uint8"), tensor
        assert bytes(taken.view(torch.uint8).flatten().tolist()) == bytes(tensor.read())
        assert torch.equal(torch.from_dlpack(tensor[1:]).view(torch.uint8), taken[1:].view(torch.uint8))
        if knows:
            assert torch.equal(taken.view(torch.uint8), tensor.torch().view(torch.uint8))


def test_dlpack_works_without_numpy(weightd, daemon):
    publish(weightd, torch.nn.Linear(3, 2))
    code = """if True:
        import sys
        sys.modules["numpy"] = None
        import torch, weightd
        torch.ones(4).view((2, 2))  # where 1.13 misses numpy first, it keeps what it holds for ever
        buffer = weightd.attach("m")
        taken = torch.from_dlpack(buffer["weight"])
        assert taken.data_ptr() == buffer["weight"].torch().data_ptr() and taken.shape == (2, 3)
        capsule = buffer["bias"].__dlpack__()
        del buffer, capsule
        print(weightd.ping().n_leases)
        del taken
        print(weightd.ping().n_leases)
        layout = weightd.Layout()
        layout.add("f6", "F6_E2M3", (4,))
        layout.add("f8", "F8_E4M3", (2, 3))
        with weightd.create("n", layout) as writer:
            writer.publish()
        n = weightd.attach("n")
        f6, f8 = n["f6"], n["f8"]
        from weightd import _dlpack
        for tensor, version in (f6, None), (f8, None), (f8, (1, 1)):
            capsule = tensor.__dlpack__(max_version=version)
            found = _dlpack.dl_tensor(capsule)
            print(found.code, found.bits, found.ndim)
        """
    env = daemon.env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, timeout=60)
    assert done.stdout == b"1\n0\n1 8 1\n1 8 2\n10 8 2\n"


def test_type_that_torch_has_not_is_refused_with_the_way_out(weightd):
    layout = weightd.Layout()
    layout.add("t", "F6_E2M3", (4,))
    with weightd.create("m", layout) as writer:
        writer.publish()
    with pytest.raises(TypeError, match=r"F6_E2M3.*'t'.*numpy\(\)"):
        weightd.attach("m")["t"].torch()


def test_layout_has_every_type_that_this_torch_and_weightd_have(weightd):
    from weightd import _dtype

    for name, theirs in _dtype.TORCH.items():
        if not hasattr(torch, theirs):
            continue
        module = torch.nn.Module()
        module.register_buffer("t", torch.empty((2, 6), dtype=getattr(torch, theirs), device="meta"))
        row = weightd.torch.layout_of(module)[0]
        assert (row.dtype, row.shape) == (name, (2, 12) if name == "F4" else (2, 6))
        with weightd.create(name, weightd.torch.layout_of(module)) as writer:
            assert writer["t"].torch().dtype == module.t.dtype and writer["t"].torch().shape == (2, 6)
        weightd.torch.flat(module, name + ".flat").publish()


# --- Layouts -----------------------------------------------------------------------------------------


def test_layout_has_names_and_order_of_the_state_dict(weightd):
    model = Model("meta")
    layout, state = weightd.torch.layout_of(model), model.state_dict()
    assert [row.name for row in layout] == list(state)
    assert [row.shape for row in layout] == [tuple(tensor.shape) for tensor in state.values()]
    assert layout.hash == weightd.torch.layout_of(Model()).hash
    assert layout.hash != weightd.torch.layout_of(Model(dtype=torch.float16)).hash


def test_layout_tells_role_unit_and_ties(weightd):
    rows = {row.name: row for row in weightd.torch.layout_of(Model("meta"))}
    assert rows["batch.running_mean"].role == rows["batch.num_batches_tracked"].role == "buffer"
    assert rows["batch.weight"].role == "param"
    assert rows["head.weight"].tied_to == rows["embed.weight"].index
    assert rows["last.norm.weight"].tied_to == rows["layers.1.norm.weight"].index
    assert rows["head.weight"].offset == rows["embed.weight"].offset
    units = {"layers.1.norm.weight": "layers.1", "embed.weight": "embed", "scale": "",
             "rnn.bias_ih_l0": "rnn"}
    assert {name: rows[name].unit for name in units} == units
    assert "ramp" not in rows


def test_type_that_weightd_has_not_is_named(weightd):
    module = torch.nn.Module()
    module.x = torch.nn.Parameter(torch.ones(2, dtype=torch.complex128))
    with pytest.raises(ValueError, match="x: .*complex128"):
        weightd.torch.layout_of(module)


# --- bind and refresh --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_bound_module_computes_what_the_ordinary_one_does(weightd, device):
    ordinary = Model().eval()
    publish(weightd, ordinary)
    buffer = weightd.attach("m")
    model = weightd.torch.bind(Model(device), buffer).eval()
    assert torch.equal(model(tokens()), ordinary(tokens()))
    assert list(model.state_dict()) == list(ordinary.state_dict())
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == base(buffer) + buffer[name].offset, name
        assert isinstance(parameter, torch.nn.Parameter) and not parameter.requires_grad
    assert model.head.weight is model.embed.weight and model.last is model.layers[1]


def test_bound_buffers_are_private(weightd):
    publish(weightd, Model())
    buffer = weightd.attach("m")
    one, other = (weightd.torch.bind(Model("meta"), buffer).train() for _ in range(2))
    one(tokens())
    assert one.batch.num_batches_tracked == 1 and other.batch.num_batches_tracked == 0
    assert buffer["batch.num_batches_tracked"].torch() == 0
    buffer.verify()


def test_bound_module_keeps_the_memory_mapped(weightd):
    publish(weightd, Model())
    with weightd.attach("m") as buffer:
        model = weightd.torch.bind(Model("meta"), buffer)
    del buffer
    model(tokens())
    assert weightd.ping().n_leases == 1
    del model
    assert weightd.ping().n_leases == 0


def test_attributes_of_parameters_survive_bind(weightd):
    publish(weightd, Model())
    model = Model("meta")
    model.scale.shard = 3
    assert weightd.torch.bind(model, weightd.attach("m")).scale.shard == 3


def test_file_without_roles_and_with_one_of_two_tied_names_is_bound(weightd):
    ordinary, layout = Model().eval(), weightd.Layout()
    state = {key: tensor for key, tensor in ordinary.state_dict().items()
             if key != "embed.weight" and not key.startswith("last.")}
    for key, tensor in state.items():
        layout.add(key, "I64" if tensor.dtype == torch.int64 else "F32", tensor.shape)
    with weightd.create("m", layout) as writer:
        for key, tensor in state.items():
            writer[key].torch().copy_(tensor)
        writer.publish()
    buffer = weightd.attach("m")
    model = weightd.torch.bind(Model("meta"), buffer)
    assert torch.equal(model.eval()(tokens()), ordinary(tokens()))
    assert model.embed.weight.data_ptr() == buffer["head.weight"].torch().data_ptr()
    model.batch.running_mean.add_(1)  # private, though the file called it a parameter


def test_misfits_are_refused_by_name_and_change_nothing(weightd):
    ordinary = Model()
    publish(weightd, ordinary)
    buffer = weightd.attach("m")
    cases = []
    for change, words in (
            (lambda m: setattr(m, "extra", torch.nn.Parameter(torch.ones(2, device="meta"))),
             ["missing in the buffer: extra"]),
            (lambda m: delattr(m, "scale"), ["not in the module: scale"]),
            (lambda m: m.half(), ["embed.weight is F32 [16, 8], not F16 [16, 8]", "more"]),
            (lambda m: setattr(m, "scale", torch.nn.Parameter(torch.ones(2, device="meta"))),
             ["other type or shape: scale is F32 [], not F32 [2]"])):
        model = Model("meta")
        change(model)
        with pytest.raises(weightd.LayoutMismatch) as e:
            weightd.torch.bind(model, buffer)
        assert e.value.errno == errno.EPROTOTYPE
        cases += [word for word in words if word not in str(e.value)]
        assert model.embed.weight.is_meta
    assert cases == []


def test_names_of_one_side_are_left_alone_unless_strict(weightd):
    publish(weightd, Model())
    model = Model("meta")
    model.extra = torch.nn.Parameter(torch.ones(2))
    del model.scale
    weightd.torch.bind(model, weightd.attach("m"), strict=False)
    assert model.extra.tolist() == [1, 1] and not model.embed.weight.is_meta


def test_non_persistent_buffers_on_meta_are_named_with_the_way_out(weightd):
    publish(weightd, Model())
    model = Model("meta")
    model.layers[0].register_buffer("cache", torch.ones(2, device="meta"), persistent=False)
    for use in (lambda: weightd.torch.bind(model, weightd.attach("m")),
                lambda: weightd.torch.flat(model, "n")):
        with pytest.raises(ValueError, match=r"^layers\.0\.cache: .*meta_parameters\(\).*assign them first"):
            use()
    assert [info.name for info in weightd.ls()] == ["m"]
    model.layers[0].cache = torch.ones(2)
    weightd.torch.bind(model, weightd.attach("m"))


def test_refresh_moves_the_same_parameters_to_the_next_version(weightd):
    first, second = Model().eval(), Model().eval()
    second.batch.running_mean.fill_(3)
    publish(weightd, first)
    buffer = weightd.attach("m")
    model = weightd.torch.bind(Model("meta"), buffer).eval()
    before = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    publish(weightd, second)
    assert torch.equal(model(tokens()), first(tokens()))
    newer = buffer.refresh()
    weightd.torch.refresh(model, newer)
    assert torch.equal(model(tokens()), second(tokens()))
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == before
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == base(newer) + newer[name].offset
    buffer.close()
    assert weightd.ping().n_leases == 1  # nothing of the old version is left
    with pytest.raises(ValueError, match="bind"):
        weightd.torch.refresh(Model("meta"), newer)


def test_write_to_what_is_published_is_a_segfault_which_guard_explains(weightd, in_child):
    publish(weightd, torch.nn.Linear(2, 2))
    code = """if True:
        import os, sys, torch, weightd.torch
        buffer = weightd.attach("m")
        model = weightd.torch.bind(torch.nn.Linear(2, 2, device="meta"), buffer)
        flat = weightd.torch.flat(torch.nn.Linear(2, 2), "n")
        flat.publish()

        def write_parameter():
            model.weight.data.zero_()
        def step():
            model.requires_grad_()
            optimizer = torch.optim.SGD(model.parameters(), 1.0)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        def write_capsule():
            torch.from_dlpack(buffer["bias"])[1:] = 1
        def write_behind_publish():
            flat.module.bias.data += 1
        def read_released():
            mine = weightd.attach("m")
            weight = mine["weight"].torch()
            mine.release()
            weight[1].sum()
        def read_null():
            import ctypes
            ctypes.string_at(8)
        def tell(act, guarded):
            print(act.__name__, flush=True)
            child = os.fork()
            if child == 0:
                os.dup2(1, 2)
                if guarded:
                    weightd.torch.guard()
                    weightd.torch.guard()
                act()
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

        tell(write_parameter, False)
        for act in write_parameter, step, write_capsule, write_behind_publish, read_released, read_null:
            tell(act, True)
        """
    printed = in_child(code)
    told = printed.split("\n-11\n")
    assert told[0] == "write_parameter" and told[-1] == "" and len(told) == 8, printed
    published = "which is published, and cannot be changed"
    for said, act, place, why in zip(told[1:], *zip(
            ("write_parameter", "byte 0 of 'weight', buffer 'm' version 1", published),
            ("step", "of 'weight', buffer 'm' version 1", published),
            ("write_capsule", "byte 4 of 'bias', buffer 'm' version 1", published),
            ("write_behind_publish", "byte 0 of 'bias', buffer 'n' version 1", published),
            ("read_released", "byte 8 of 'weight', buffer 'm' version 1", "whose memory was released"))):
        lines = said.splitlines()
        assert lines[0] == act and lines[1].startswith("weightd: SIGSEGV at ") and place in lines[1], said
        assert why in lines[1] and f" in {act}" in said, said
    assert "weightd" not in told[6].splitlines()[1] and " in read_null" in told[6], told[6]
    weightd.attach("m").verify()


# --- flat --------------------------------------------------------------------------------------------


def test_flat_of_a_meta_module_is_filled_and_published(weightd):
    ordinary = Model().eval()
    with weightd.torch.flat(Model("meta"), "m") as flat:
        flat.module.load_state_dict(ordinary.state_dict())
        assert flat["scale"].shape == () and set(flat) == set(ordinary.state_dict())
        assert flat.publish() == flat.writer.version == 1
    assert torch.equal(flat.module.eval()(tokens()), ordinary(tokens()))
    bound = weightd.torch.bind(Model("meta"), weightd.attach("m")).eval()
    assert torch.equal(bound(tokens()), ordinary(tokens()))


def test_flat_keeps_requires_grad_and_objects_of_real_modules(weightd):
    model = Model()
    model.scale.requires_grad_(False)
    parameters, output = list(model.parameters()), model.eval()(tokens())
    flat = weightd.torch.flat(model, "m")
    assert all(a is b for a, b in zip(flat.module.parameters(), parameters))
    assert torch.equal(flat.module(tokens()), output)
    meta = Model("meta")
    meta.scale.requires_grad_(False)
    for name, parameter in weightd.torch.flat(meta, "n").module.named_parameters():
        assert parameter.requires_grad == (name != "scale"), name


def test_training_goes_on_in_the_next_version(weightd):
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    digests = set()
    for version in range(1, 4):
        flat = weightd.torch.flat(model, "m")
        optimizer.zero_grad()
        model.train()(tokens()).square().mean().backward()
        optimizer.step()
        assert flat.publish() == version
        digests.add(weightd.attach("m").digest)
        expected = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        bound = weightd.torch.bind(Model("meta"), weightd.attach("m"))
        assert all(torch.equal(bound.state_dict()[key], expected[key]) for key in expected)
    assert len(digests) == 3 and bound.batch.num_batches_tracked == 3


def test_flat_that_is_left_unpublished_leaves_nothing(weightd):
    with pytest.raises(RuntimeError):
        with weightd.torch.flat(Model("meta"), "m") as flat:
            raise RuntimeError
    del flat
    assert weightd.ls() == []


def test_options_of_create_are_passed_on(weightd):
    with weightd.torch.flat(Model("meta"), "m", keep=3, mode=0o600, alignment=4096) as flat:
        assert {tensor.offset % 4096 for tensor in flat.values()} == {0}
        flat.publish()
    assert (weightd.ls("m")[0].keep, weightd.ls("m")[0].mode & 0o777) == (3, 0o600)
    with pytest.raises(weightd.LayoutMismatch):
        weightd.torch.flat(torch.nn.Linear(2, 2, device="meta"), "m")


def test_what_is_conjugate_negative_or_strided_is_copied_by_its_values(weightd):
    z, square = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64), torch.arange(9.0).reshape(3, 3)
    odd = {"conj": z.conj(), "neg": z.clone().conj().imag, "t": square.t(), "step": square.clone()[:, ::2]}
    assert odd["conj"].is_conj() and odd["neg"].is_neg()
    module = torch.nn.Module()
    for name, tensor in odd.items():
        module.register_buffer(name, tensor)
    with weightd.create("filled", weightd.torch.layout_of(module)) as writer:
        weightd.torch.fill(writer, odd)
        writer.publish()
    weightd.torch.flat(module, "flat").publish()
    for name in "filled", "flat":
        buffer = weightd.attach(name)
        assert buffer["conj"].torch().tolist() == [1 - 2j, 3 + 4j]
        assert buffer["neg"].torch().tolist() == [-2, 4]
        assert buffer["t"].torch().tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
        assert buffer["step"].torch().tolist() == [[0, 2], [3, 5], [6, 8]]


# --- The other torch ---------------------------------------------------------------------------------


@pytest.mark.plain
@pytest.mark.timeout(600)
def test_all_of_this_passes_with_torch_2_too():
    if os.environ.get("WEIGHTD_TORCH2_RUNS"):
        pytest.skip("this is the run with torch 2")
    features.require("torch2")
    probe = subprocess.run([features.TORCH2, "-c", "import pytest"], stderr=subprocess.PIPE)
    features.require("torch2", f"no pytest there ({features.TORCH2} -m pip install pytest)",
                     probe.returncode == 0)
    folder = os.path.dirname(os.path.abspath(__file__))
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    plain = "addopts=--import-mode=importlib -p no:cacheprovider --tb=short"  # no plug-ins there
    done = subprocess.run([features.TORCH2, "-m", "pytest", "-q", "-o", plain,
                           *(os.path.join(folder, name) for name in FILES)],
                          env=env | {"WEIGHTD_TORCH2_RUNS": "1"}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
