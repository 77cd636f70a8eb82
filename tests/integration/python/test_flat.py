"""Flat tensors: that a module's parameters are the bytes of one buffer, and cost nothing beside them."""
import threading

import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
VOCABULARY, WIDTH = 20, 12

if HAS_TORCH:
    import torch

    class Net(torch.nn.Module):
        """Odd sizes, state, a scalar, and a head tied to the embedding."""

        def __init__(self, device=None, hidden=7):
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, WIDTH, device=device)
            self.blocks = torch.nn.Sequential(
                torch.nn.Linear(WIDTH, hidden, device=device),
                torch.nn.BatchNorm1d(hidden, device=device), torch.nn.ReLU(),
                torch.nn.Linear(hidden, WIDTH, device=device))
            self.gain = torch.nn.Parameter(torch.ones((), device=device))
            self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, device=device)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.blocks(self.embed(tokens)) * self.gain)


@pytest.fixture
def weightd(daemon, monkeypatch):
    features.require("library")
    features.require("torch")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    torch.manual_seed(1)
    import weightd.torch
    return weightd


def tokens():
    return torch.arange(30) % VOCABULARY


def assert_is_flat(flat):
    """Each tensor of the module at base + offset; one range per tensor, none overlapping; ties once."""
    rows = [flat.writer.tensor(i) for i in range(len(flat))]
    base = rows[0].torch().data_ptr() - rows[0].offset
    state = flat.module.state_dict(keep_vars=True)
    assert sorted(state) == sorted(row.name for row in rows)
    for row in rows:
        assert state[row.name].data_ptr() == base + row.offset, row
        assert state[row.name].numel() * state[row.name].element_size() == row.nbytes, row
        assert row.offset % row.itemsize == 0 and row.offset + row.nbytes <= flat.writer.nbytes, row
    own = sorted((row.offset, row.offset + row.nbytes) for row in rows if row.tied_to is None)
    assert all(end <= start for (_, end), (start, _) in zip(own, own[1:])), own
    assert [row.name for row in rows if row.tied_to is not None] == ["head.weight"]
    assert flat.module.head.weight is flat.module.embed.weight


@pytest.mark.plain
def test_layout_of_a_meta_module_costs_under_a_percent_of_its_bytes(in_child):
    peak, before, nominal = map(int, in_child("""if True:
        import re, torch, weightd.torch
        def kib(field):
            return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
        weightd.torch.layout_of(torch.nn.Linear(2, 2, device="meta"))
        open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
        before = kib("VmRSS")
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device="meta") for _ in range(64)))
        layout = weightd.torch.layout_of(model)
        print(kib("VmHWM") * 1024, before * 1024, layout.nbytes)
        """).split())
    assert nominal >= 1 << 30
    assert peak - before < nominal / 100, f"{(peak - before) / 2**20:.1f} MiB"


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_parameters_are_ranges_of_the_buffer_and_stay_so(weightd, device):
    flat = weightd.torch.flat(Net(device), "m")
    model = flat.module
    assert_is_flat(flat)
    model.load_state_dict(Net().state_dict())
    assert_is_flat(flat)
    for optimizer in (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                      torch.optim.Adam(model.parameters(), lr=0.1)):
        before = flat["embed.weight"].torch().clone()
        model(tokens()).square().mean().backward()
        optimizer.step()
        assert_is_flat(flat)
        assert not torch.equal(flat["embed.weight"].torch(), before)
        for set_to_none in (False, True):
            optimizer.zero_grad(set_to_none=set_to_none)
            assert_is_flat(flat)
    expected = model.embed.weight.detach().clone()
    flat.publish()
    assert_is_flat(flat)
    assert torch.equal(weightd.attach("m")["embed.weight"].torch(), expected)


def test_gradients_are_ordinary_memory(weightd):
    flat = weightd.torch.flat(Net(), "m")
    flat.module(tokens()).mean().backward()
    first, size = flat.writer.tensor(0).torch().data_ptr(), flat.writer.nbytes
    for parameter in flat.module.parameters():
        assert not first <= parameter.grad.data_ptr() < first + size


def test_flat_module_has_the_keys_and_the_results_of_the_ordinary_one(weightd):
    ordinary = Net().eval()
    flat = weightd.torch.flat(Net("meta"), "m")
    flat.module.load_state_dict(ordinary.state_dict())
    flat.publish()
    bound = weightd.torch.bind(Net("meta"), weightd.attach("m"))
    for model in (flat.module, bound):
        assert list(model.state_dict()) == list(ordinary.state_dict())
        assert torch.equal(model.eval()(tokens()), ordinary(tokens()))


def test_two_phase_creation_allocates_the_model_once(in_child):
    out = in_child("""if True:
        import re, torch, weightd.torch
        def kib(field):
            return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
        torch.nn.Linear(2, 2)(torch.ones(2))
        before = kib("RssAnon")
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, device="meta") for _ in range(16)))
        flat = weightd.torch.flat(model, "m")
        for parameter in model.parameters():
            torch.nn.init.ones_(parameter)
        flat.publish()
        print(kib("RssAnon") - before, flat.writer.nbytes // 1024)
        """)
    grown, size = map(int, out.split())
    assert size >= 64 * 1024 and grown < size / 10


def test_attach_before_the_first_publish_fails_or_waits(weightd):
    flat = weightd.torch.flat(Net("meta"), "m")
    with pytest.raises(weightd.NotPublished, match="m"):
        weightd.attach("m")
    with pytest.raises(weightd.Timeout):
        weightd.attach("m", timeout=0.05)
    found = []
    waiter = threading.Thread(target=lambda: found.append(weightd.attach("m", timeout=60)))
    waiter.start()
    with torch.no_grad():
        flat.module.gain.fill_(4)
    flat.publish()
    waiter.join(60)
    assert [buffer["gain"].torch().item() for buffer in found] == [4]


def test_processes_whose_layouts_differ_in_one_dimension_are_refused_by_hash(weightd, in_child):
    weightd.torch.flat(Net(hidden=7), "m").publish()
    out = in_child(f"""if True:
        import torch, weightd.torch
        def net(hidden):
            return torch.nn.Sequential(torch.nn.Linear({WIDTH}, hidden, device="meta"))
        with weightd.torch.flat(net(7), "n") as flat:
            flat.publish()
        for hidden in (7, 8):
            layout = weightd.torch.layout_of(net(hidden))
            try:
                print(hidden, weightd.attach("n", layout=layout).version)
            except weightd.LayoutMismatch as e:
                print(hidden, "refused", e.errno)
        """)
    assert out == "7 1\n8 refused 91\n"
    same, other = (weightd.torch.layout_of(Net("meta", hidden)) for hidden in (7, 8))
    assert weightd.attach("m", layout=same).layout().difference(same) == ""
    for use in (lambda: weightd.attach("m", layout=other), lambda: weightd.create("m", other),
                lambda: weightd.torch.bind(Net("meta", 8), weightd.attach("m"))):
        with pytest.raises(weightd.LayoutMismatch):
            use()
    assert weightd.versions("m")[0].version == 1


# --- Filling by hand ----------------------------------------------------------------------------------


def test_a_state_fills_a_writer(weightd):
    net = Net()
    with weightd.create("m", weightd.torch.layout_of(net)) as writer:
        state = net.state_dict()
        del state["head.weight"]  # tied: one name is enough
        weightd.torch.fill(writer, state)
        assert weightd.torch.publish(writer) == writer.version == 1
    replica = weightd.torch.bind(Net("meta"), weightd.attach("m")).eval()
    assert torch.equal(replica(tokens()), net.eval()(tokens()))


@pytest.mark.parametrize("change,says", [
    (lambda state: state.pop("gain"), "not given: gain"),
    (lambda state: state.update(other=torch.ones(1)), "not in the layout: other"),
    (lambda state: state.update(gain=torch.ones(2)), r"other type or shape: gain is F32 \[\], not F32 \[2\]"),
    (lambda state: state.update(gain=torch.ones((), dtype=torch.half)), r"gain is F32 \[\], not F16 \[\]")])
def test_a_state_that_does_not_fit_fills_nothing(weightd, change, says):
    net = Net()
    with weightd.create("m", weightd.torch.layout_of(net)) as writer:
        state = net.state_dict()
        change(state)
        with pytest.raises(weightd.LayoutMismatch, match=says):
            weightd.torch.fill(writer, state)
        assert not any(writer.read())
