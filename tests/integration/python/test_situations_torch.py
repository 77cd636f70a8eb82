"""
Situations in which weightd.torch must be right, of the kinds of fault that models, trainers and replicas meet. Each began
as the name of a kind alone; those that other files have already are not repeated here.
"""
import copy
import warnings

import pytest
from integration.python.test_adoption_torch import changed
from integration.python.test_torch_names import computes, net, publish
from integration.python.test_transformers import HAS_TRANSFORMERS
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = [pytest.mark.plain, pytest.mark.usefixtures("with_torch")]
with_transformers = pytest.mark.skipif(not HAS_TRANSFORMERS, reason="this Python has no transformers: test_torch.py runs the "
                                       "one that has")

if HAS_TRANSFORMERS:
    import transformers

if HAS_TORCH:
    import torch
    from integration.python.test_torch_load import CAN_ASSIGN

    class Speech(torch.nn.Module):
        """Layers that keep their weights in more places than one."""

        def __init__(self, device=None):
            super().__init__()
            old = torch.nn.utils.weight_norm
            new = getattr(torch.nn.utils.parametrizations, "weight_norm", old)  # torch 1.13 has the first alone
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the old one is deprecated, and in use
                self.old, self.new = (norm(torch.nn.Linear(4, 4, device=device)) for norm in (old, new))
            self.lstm = torch.nn.LSTM(4, 8, num_layers=2, bidirectional=True, device=device)
            self.gru = torch.nn.GRU(16, 4, device=device)
            self.scales = torch.nn.ParameterList([torch.ones(4, device=device)])

        def forward(self, x):
            return self.gru(self.lstm(self.new(self.old(x)) * self.scales[0])[0])[0]


def same(module, other):
    """True: their tensors have the same values."""
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in module.state_dict().items())


# --- Names -------------------------------------------------------------------------------------------


def test_names_that_become_one_are_refused_unless_their_values_agree(weightd):
    layout = weightd.Layout()
    layout.add("fc.weight", "F32", (4, 4))
    state = {"model.fc.weight": torch.ones(4, 4), "ema_model.fc.weight": torch.full((4, 4), 2.0)}

    def strip(name):
        return name.rpartition("model.")[2]

    with weightd.create("m", layout) as writer:
        with pytest.raises(weightd.LayoutMismatch, match=r"different values .*: model\.fc\.weight and ema_model\.fc"):
            weightd.torch.fill(writer, state, names=strip)
        assert not any(writer.read())
        state["ema_model.fc.weight"] = state["model.fc.weight"].clone()
        assert weightd.torch.fill(writer, state, names=strip) == ([], [])
        assert (writer["fc.weight"].torch() == 1).all()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_checkpoint_of_which_no_name_fits_changes_nothing_and_is_bound_by_a_function(weightd, device):
    ordinary, trained = changed(net()), torch.nn.Module()
    trained.module = torch.nn.Module()
    trained.module._orig_mod = ordinary
    buffer, replica = publish(weightd, trained), net(device)
    before = [(id(tensor), tensor.data_ptr()) for tensor in replica.state_dict(keep_vars=True).values()]
    with pytest.raises(weightd.LayoutMismatch, match=r"missing in the buffer: 0\.weight, .*; not in the module: "
                       r".*module\._orig_mod\.0\.weight, .*names=\{'': 'module\._orig_mod\.'\}$"):
        weightd.torch.bind(replica, buffer, strict=False)
    assert [(id(tensor), tensor.data_ptr()) for tensor in replica.state_dict(keep_vars=True).values()] == before
    weightd.torch.bind(replica, buffer, names=lambda name: f"module._orig_mod.{name}")
    assert same(replica, ordinary)


def test_what_a_classifier_leaves_of_a_language_model_is_returned_and_misspelt_keys_are_named(weightd):
    def model(backbone, **head):
        body = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 4), "norm": torch.nn.LayerNorm(4)})
        return torch.nn.ModuleDict({backbone: body, **head})

    language = model("model", lm_head=torch.nn.Linear(4, 9, bias=False))
    buffer = publish(weightd, language)
    score = torch.nn.Linear(4, 2, bias=False)
    classifier, parameter = model("backbone", score=score), score.weight
    names = {f"backbone.{key}": f"model.{key}" for key in language["model"].state_dict()}
    assert weightd.torch.bind(classifier, buffer, strict=False, names=names) == (["score.weight"], ["lm_head.weight"])
    assert score.weight is parameter and same(classifier["backbone"], language["model"])

    fresh = model("backbone", score=score)
    misspelt = {key.replace("backbone", "backbon"): value for key, value in names.items()}
    with pytest.raises(weightd.LayoutMismatch, match=r"in names=, but not in the module: backbon\.fc\.weight, "):
        weightd.torch.bind(fresh, buffer, strict=False, names=misspelt)
    assert weightd.torch.is_bound(fresh).shared == []


@pytest.mark.skipif(not HAS_TORCH or not hasattr(torch, "compile"), reason="this torch compiles no modules")
def test_a_compiled_replica_is_bound_by_the_names_of_the_module_inside(weightd):
    ordinary = changed(net())
    buffer, replica = publish(weightd, ordinary), net("meta")
    compiled = torch.compile(replica)
    with pytest.raises(weightd.LayoutMismatch, match=r"names=\{'_orig_mod\.': ''\}$"):
        weightd.torch.bind(compiled, buffer)
    weightd.torch.bind(compiled, buffer, names={"_orig_mod.": ""})
    assert torch.equal(computes(replica), computes(ordinary))


# --- Versions ----------------------------------------------------------------------------------------


def test_a_grown_vocabulary_and_another_type_are_named_by_create_and_attach(weightd):
    def model(vocabulary, dtype):
        return torch.nn.ModuleDict({"tok": torch.nn.Embedding(vocabulary, 8), "norm": torch.nn.LayerNorm(3).to(dtype)})

    publish(weightd, model(16, torch.float32))
    grown = weightd.torch.layout_of(model(17, torch.bfloat16))
    for use in lambda: weightd.create("m", grown), lambda: weightd.attach("m", layout=grown):
        with pytest.raises(weightd.LayoutMismatch) as e:
            use()
        for word in "'tok.weight'", "F32 [17, 8]", "F32 [16, 8]", "'norm.weight'", "BF16 [3]", "F32 [3]":
            assert word in str(e.value), e.value


def test_a_version_with_a_transposed_head_is_named_and_leaves_the_replica_whole(weightd):
    ordinary = torch.nn.Linear(4, 6, bias=False)
    buffer = publish(weightd, ordinary)
    replica = weightd.torch.bind(torch.nn.Linear(4, 6, bias=False), buffer)
    newer = publish(weightd, torch.nn.Linear(6, 4), new_layout=True)
    with pytest.raises(weightd.LayoutMismatch, match=r"'weight' is F32 \[4, 6\], was F32 \[6, 4\]; only in version 2: 'bias'"):
        buffer.swap()
    with pytest.raises(weightd.LayoutMismatch, match=r"weight is F32 \[4, 6\], not F32 \[6, 4\]; not in the module: bias"):
        weightd.torch.refresh(replica, newer)
    assert buffer.version == 1 and weightd.torch.is_bound(replica, buffer) and same(replica, ordinary)


@pytest.mark.parametrize("how", ["inference", "expanded"])
def test_statistics_that_cannot_be_written_follow_the_parameters(weightd, how):
    first, second = net(), changed(net())
    buffer = publish(weightd, first)
    with torch.inference_mode(how == "inference"):
        replica = weightd.torch.bind(net("meta"), buffer)
    if how == "expanded":
        replica[1].running_mean = torch.zeros(1).expand(4)
    assert torch.equal(computes(replica), computes(first))
    weightd.torch.refresh(replica, publish(weightd, second))
    assert torch.equal(computes(replica), computes(second))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_speech_model_follows_its_versions_in_all_places(weightd, device):
    first, second, x = Speech(), changed(Speech()), torch.ones(3, 2, 4)
    try:
        replica = Speech(device)
    except NotImplementedError:
        pytest.skip("this torch norms no weights on the meta device")
    weightd.torch.bind(replica, publish(weightd, first))
    assert torch.equal(replica(x), first(x))
    weightd.torch.refresh(replica, publish(weightd, second))
    assert torch.equal(replica(x), second(x))
    assert replica.lstm._flat_weights[0].data_ptr() == replica.lstm.weight_ih_l0.data_ptr()


# --- Half of it --------------------------------------------------------------------------------------


def test_a_layer_that_was_offloaded_to_meta_leaves_the_writer_as_it_was(weightd):
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(4))
    state = layers.state_dict()
    with weightd.create("m", weightd.torch.layout_of(layers)) as writer:
        for tensor in writer.values():
            tensor.torch().fill_(7)
        with pytest.raises(ValueError, match=r"^3\.weight: on the meta device"):
            weightd.torch.fill(writer, state | {"3.weight": state["3.weight"].to("meta")})
        assert all((tensor.torch() == 7).all() for tensor in writer.values())
        weightd.torch.fill(writer, state)
        writer.publish()
    assert same(weightd.torch.bind(copy.deepcopy(layers).to("meta"), weightd.attach("m")), layers)


def test_a_part_in_torchscript_is_bound_refreshed_and_made_flat(weightd):
    def model():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated, and in use
            return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.jit.script(torch.nn.Linear(3, 2)))

    first, second, x = model(), changed(model()), torch.ones(1, 3)
    buffer = publish(weightd, first)
    replica = weightd.torch.bind(model(), buffer)
    assert weightd.torch.is_bound(replica, buffer).shared == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert torch.equal(replica(x), first(x))
    weightd.torch.refresh(replica, publish(weightd, second))
    assert torch.equal(replica(x), second(x))
    flat = weightd.torch.flat(second, "n")
    assert all(parameter.data_ptr() == flat[name].torch().data_ptr() for name, parameter in second.named_parameters())
    assert torch.equal(second(x), replica(x))


def test_projections_that_are_slices_of_one_parameter_are_refused_and_stay_so(weightd):
    module = torch.nn.Module()
    module.qkv = torch.nn.Parameter(torch.randn(12, 4))
    module.q = torch.nn.Parameter(module.qkv.data[:4])
    module.k = torch.nn.Parameter(module.qkv.data[4:8])
    with pytest.raises(ValueError, match="qkv and [qk] share a part of their memory"):
        weightd.torch.flat(module, "m")
    module.qkv.data.fill_(42)
    assert (module.q == 42).all() and (module.k == 42).all() and weightd.ls() == []


# --- Published memory and other processes ------------------------------------------------------------


def test_a_module_with_parameters_that_were_assigned_is_bound_no_more(weightd):
    replica = weightd.torch.bind(net("meta"), publish(weightd, net()))
    state = {name: torch.full_like(tensor, 5) for name, tensor in replica.state_dict().items()}
    with pytest.raises(weightd.Denied, match=r"^0\.weight, .*assign=True"):
        replica.load_state_dict(state)
    assert weightd.torch.is_bound(replica) and same(replica, net())
    weightd.attach("m").verify()
    if not CAN_ASSIGN:
        return
    replica.load_state_dict(state, assign=True)
    found = weightd.torch.is_bound(replica)
    assert not found and "0.weight" in found.lost and (replica[0].weight == 5).all()


def test_a_replica_that_is_not_handed_over_stays_bound_and_its_copy_trains(weightd):
    first, second = net(), changed(net())
    buffer = publish(weightd, first)
    replica = weightd.torch.bind(net("meta"), buffer)
    twin = copy.deepcopy(replica).requires_grad_()
    with pytest.raises(TypeError, match=r"hand over the Buffer, or its name, and bind\(\) there"):
        torch.multiprocessing.get_context("spawn").Process(target=print, args=(replica,)).start()
    assert weightd.torch.is_bound(replica, buffer)
    publish(weightd, second)
    buffer.swap()
    assert torch.equal(computes(replica), computes(second))
    computes(twin).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=1).step()
    assert not same(twin, first) and not weightd.torch.is_bound(twin)


def test_fine_tuning_of_published_memory_is_explained_and_that_of_a_writer_works(weightd, in_child):
    publish(weightd, net())
    code = """if True:
        import os
        import torch, weightd.torch

        def net(device=None):
            return torch.nn.Sequential(torch.nn.Linear(3, 4, device=device), torch.nn.BatchNorm1d(4, device=device))
        def replica():
            return weightd.torch.bind(net("meta"), weightd.attach("m"))
        def train(module):
            optimizer, losses = torch.optim.AdamW(module.parameters(), lr=0.1, foreach=True), []
            for _ in range(5):
                optimizer.zero_grad()
                loss = module[0](torch.ones(2, 3)).square().mean()
                loss.backward()
                losses.append(loss.item())
                print("backward", flush=True)
                optimizer.step()
            print("trained", losses[-1] < losses[0], flush=True)
        def tune():
            train(replica().requires_grad_())
        def merge():
            replica()[0].weight.data += torch.ones(4, 1) @ torch.ones(1, 3)
        def initialize():
            torch.nn.init.normal_(replica()[1].weight)
        def train_on():
            flat = weightd.torch.flat(net(), "n")
            train(flat.module)
            flat.publish()
            train(flat.module)

        torch.optim.AdamW([torch.ones(1)]).step()  # imports what each child would
        weightd.torch.guard()
        for act in tune, merge, initialize, train_on:
            child = os.fork()
            if child == 0:
                os.dup2(1, 2)
                act()
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        """
    out = in_child(code)
    printed = out.split("\n-11\n")
    assert len(printed) == 5 and printed[-1] == "", out
    for text, before, place in zip(printed, ("backward\n", "", "", 5 * "backward\n" + "trained True\nbackward\n"), (
            "of '0.weight', buffer 'm' version 1", "of '0.weight', buffer 'm' version 1", "of '1.weight', buffer 'm' version 1",
            "buffer 'n' version 1")):
        assert text.startswith(before + "weightd: SIGSEGV at "), text
        assert f"{place}, which is published, and cannot be changed" in text[len(before):].splitlines()[0], text
    weightd.attach("m").verify()


# --- Types -------------------------------------------------------------------------------------------


def test_every_type_that_safetensors_writes_is_loaded_and_published_bit_for_bit(weightd, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    kinds = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
             "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
             "float4_e2m1fn_x2")
    raw = torch.arange(96, dtype=torch.uint8).view(6, 16)
    given = {f"of.{kind}": raw % 2 == 1 if kind == "bool" else raw.clone().view(getattr(torch, kind)) for kind in kinds}
    safetensors.save_file(given, tmp_path / "m.safetensors")
    weightd.load("m", tmp_path / "m.safetensors")
    buffer = weightd.attach("m")

    def module(of):
        made = torch.nn.Module()
        made.of = torch.nn.Module()
        for name, tensor in given.items():
            made.of.register_buffer(name[3:] + "_", of(tensor))
        return made

    replica = weightd.torch.bind(module(lambda t: torch.empty_like(t, device="meta")), publish(weightd, module(lambda t: t), "n"))
    for name, tensor in given.items():
        for found in buffer[name].torch(), replica.state_dict()[f"{name}_"]:
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8)), name
    packed = buffer["of.float4_e2m1fn_x2"]
    assert (packed.shape, packed.nbytes) == ((6, 32), 96)
    for rows in packed[2:4].torch(), packed.torch()[2:4]:
        assert torch.equal(rows.view(torch.uint8), raw[2:4])


def test_as_tensor_keeps_types_and_values_and_odd_rows_are_their_bytes(weightd):
    layout, values = weightd.Layout(), torch.arange(12.0).view(3, 4)
    for name, dtype, shape in ("f", "F32", (3, 4)), ("b", "BF16", (3, 4)), ("odd", "F4", (2, 3)):
        layout.add(name, dtype, shape)
    with weightd.create("m", layout) as writer:
        for name in "fb":
            writer[name].torch().copy_(values)
        writer["odd"].write(b"\x12\x34\x56")
        writer.publish()
    buffer = weightd.attach("m")
    for name, kind in ("f", torch.float32), ("b", torch.bfloat16):
        if torch.__version__ < "2":  # these take it for a list
            with pytest.raises(TypeError):
                torch.as_tensor(buffer[name])
        else:
            assert torch.equal(torch.as_tensor(buffer[name]), values.to(kind))
    for odd in torch.from_dlpack(buffer["odd"]), *([buffer["odd"].torch()] if hasattr(torch, "float4_e2m1fn_x2") else []):
        assert odd.view(torch.uint8).tolist() == [0x12, 0x34, 0x56]


# --- Models of transformers --------------------------------------------------------------------------


SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
         "max_position_embeddings": 64, "pad_token_id": 0}
TOKENS = {"input_ids": [[1, 2, 3, 4, 5, 6, 7, 8]]}
MODELS = {
    "tied in bfloat16": ("LlamaForCausalLM", SMALL | {"num_key_value_heads": 1, "tie_word_embeddings": True}, "bfloat16"),
    "a scaled embedding": ("Gemma3ForCausalLM", SMALL | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 9}),
    "a decoder and its bias tied": ("BertForMaskedLM", SMALL)}


def make(architecture, options, dtype="float32"):
    kind = getattr(transformers, architecture)
    return kind._from_config(kind.config_class(**options), dtype=getattr(torch, dtype)).eval()


def save(folder, *model):
    """A model that save_pretrained() wrote, of which no tensor is all zeros or ones."""
    torch.manual_seed(1)
    made = make(*model)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    made.save_pretrained(folder)
    return made


def logits(model, **inputs):
    with torch.no_grad():
        return model(**{name: torch.as_tensor(value) for name, value in (inputs or TOKENS).items()}).logits


@with_transformers
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_with_only_its_parameters_on_meta_computes_what_was_saved(weightd, tmp_path, model):
    saved = save(tmp_path, *model)
    weightd.load("m", tmp_path)
    with weightd.torch.meta_parameters():
        replica = make(*model)
    assert all(parameter.is_meta for parameter in replica.parameters()) and not any(b.is_meta for b in replica.buffers())
    weightd.torch.bind(replica, weightd.attach("m"))
    assert torch.equal(logits(replica), logits(saved))


@with_transformers
def test_a_model_that_is_all_on_meta_is_refused_with_the_way_out(weightd, tmp_path):
    model = MODELS["tied in bfloat16"]
    save(tmp_path, *model)
    weightd.load("m", tmp_path)
    with torch.device("meta"):
        replica = make(*model)
    with pytest.raises(ValueError, match=r"inv_freq.*weightd\.torch\.meta_parameters\(\)"):
        weightd.torch.bind(replica, weightd.attach("m"))


@with_transformers
def test_experts_that_a_file_has_apart_are_named_beside_those_that_the_module_fuses(weightd, tmp_path):
    from integration.python.saved_model import Saved
    saved = Saved("Mixtral", tmp_path)
    weightd.load("m", tmp_path)
    replica = saved.make_empty(weightd)
    with pytest.raises(weightd.LayoutMismatch, match=r"missing in the buffer: [^;]*gate_up_proj.*; not in the module: [^;]*"
                       r"experts\.0\."):
        weightd.torch.bind(replica, weightd.attach("m"))
    buffer = publish(weightd, saved.reference, "made")
    assert saved.check("layout_of() and fill()", weightd.torch.bind(replica, buffer), buffer) == 1


@with_transformers
def test_a_model_whose_file_has_older_names_is_bound_and_refreshed_by_names(weightd, tmp_path):
    def older(name):
        for new, old in (("vit.layers.", "vit.encoder.layer."), ("attention.o_proj", "attention.output.dense"),
                         ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense"), ("q_proj", "attention.query"),
                         ("k_proj", "attention.key"), ("v_proj", "attention.value")):
            name = name.replace(new, old)
        return name

    options = {name: SMALL[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
    model = "ViTForImageClassification", options | {"image_size": 16, "patch_size": 8}
    saved, pixels = save(tmp_path, *model), torch.ones(1, 3, 16, 16)
    weightd.load("m", tmp_path)
    with weightd.torch.meta_parameters():
        replica = make(*model)
    with pytest.raises(weightd.LayoutMismatch, match=r"vit\.layers\.0\..*vit\.encoder\.layer\.0\."):
        weightd.torch.bind(replica, weightd.attach("m"))
    weightd.torch.bind(replica, weightd.attach("m"), names=older)
    weightd.load("m", tmp_path)
    weightd.torch.refresh(replica, weightd.attach("m"), names=older)
    assert torch.equal(logits(replica, pixel_values=pixels), logits(saved, pixel_values=pixels))
