"""N readers cost one copy; written by one, read by another, bit for bit; a module that computes on it."""
from lab import GIB, MIB
from results import Skip

TORCH = """
import json, sys, torch, weightd, weightd.torch
torch.manual_seed(5)
device = torch.device("cuda:0")

def make():
    layer = torch.nn.TransformerEncoderLayer(d_model=768, nhead=12, dim_feedforward=3072, batch_first=True)
    return torch.nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False).eval()

x = torch.randn(4, 128, 768, device=device)
if sys.argv[1] == "write":
    model = make().to(device)
    flat = weightd.torch.flat(model, "encoder", device="cuda:0")
    flat.publish()
else:
    with torch.device("meta"):
        model = make()
    before = torch.cuda.memory_allocated()
    weightd.torch.bind(model, weightd.attach("encoder", device="cuda:0"))
    assert torch.cuda.memory_allocated() - before < 1 << 20, "torch has copied the weights"
with torch.inference_mode():
    y = model(x)
torch.cuda.synchronize()
import hashlib
print(json.dumps({"digest": hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest(), "sum": float(y.double().sum())}))
"""


ASK = "import json, torch; print(json.dumps({'version': torch.__version__, 'gpu': torch.cuda.is_available()}))"


def measure(lab, tell):
    with tell.part("readers of one copy"), lab.weightd(), lab.agents(5) as (writer, *readers):
        share(lab, tell, writer, readers)
    with tell.part("a model in torch"), lab.weightd():
        compute(lab, tell)


def share(lab, tell, writer, readers):
    size = lab.size(4 * GIB, 16 * MIB)
    lab.publish(writer, "m", size, 7, 10)
    before = writer.free()
    for reader in readers:
        reader.run(f"attach m {lab.device}")
    cost = before - writer.free()
    tell(f"{len(readers)} readers of {size >> 20} MiB cost", cost, "bytes", ok=cost < size // 8 + lab.noise)
    with tell.part("words that differ, copied back"):
        wrong = sum(reader.run("compare 7")["wrong"] for reader in readers[:2])
        tell("words that differ, copied back", wrong, ok=wrong == 0)
    with tell.part("sums by kernels"):
        sums = [reader.run("sum")["sum"] for reader in readers]
        tell("sums by kernels of all readers are equal", len(set(sums)) == 1, ok=len(set(sums)) == 1)
    with tell.part("verified on the device"):
        verified = [reader.code("verify") for reader in readers]
        tell("verified on the device", verified.count(0), ok=all(code == 0 for code in verified), codes=verified)


def torch_version(lab):
    """Returns the version of a torch that sees the GPU. A child imports it: a fork of a process that has initialised CUDA cannot use it."""
    if lab.fake:
        raise Skip("the stand-in computes nothing")
    try:
        said = lab.python(ASK)
    except AssertionError as e:
        raise Skip(f"no torch: {str(e).splitlines()[-1]}") from None
    if not said["gpu"]:
        raise Skip("this torch sees no GPU")
    return said["version"]


def compute(lab, tell):
    version = torch_version(lab)
    outputs = [lab.python(TORCH, what) for what in ("write", "read", "read")]
    same = len({o["digest"] for o in outputs}) == 1
    tell("a transformer computes the same over shared weights", outputs[0]["sum"], ok=same, torch=version, outputs=outputs)
