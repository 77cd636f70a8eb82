"""load_state_dict() of modules with published memory: refused with a reason, in place of a SIGSEGV."""
import copy
import inspect

import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch

    CAN_ASSIGN = "assign" in inspect.signature(torch.nn.Module.load_state_dict).parameters


def net(device=None):
    return torch.nn.Sequential(torch.nn.BatchNorm1d(4, device=device), torch.nn.Linear(4, 4, device=device))


@pytest.fixture
def bound(weightd):
    """A module in published memory: of ones, but for its statistics."""
    with weightd.torch.flat(net("meta"), "m") as flat:
        for tensor in flat.module.parameters():
            torch.nn.init.ones_(tensor)
        flat.publish()
    return weightd.torch.bind(net("meta"), weightd.attach("m"))


def twos(module):
    return {name: torch.full_like(tensor, 2) for name, tensor in module.state_dict().items()}


def test_load_into_published_memory_is_refused_by_name_and_changes_nothing(weightd, bound):
    outer = torch.nn.Module()
    outer.inner = bound
    for module, name in ((bound, "0.weight"), (bound[1], "weight"), (outer, "inner.0.weight")):
        with pytest.raises(weightd.Denied, match=rf"^{name}, .*: in published memory.*refresh.*flat.*assign=True"):
            module.load_state_dict(twos(module))
    assert all((tensor == 1).all() for tensor in bound.parameters())
    assert (bound[0].running_mean == 0).all()
    weightd.attach("m").verify()


def test_load_that_writes_only_private_memory_is_allowed(bound):
    bound.load_state_dict({name: tensor for name, tensor in twos(bound).items() if "running" in name}, strict=False)
    assert (bound[0].running_mean == 2).all()


def test_module_that_left_published_memory_can_be_loaded(weightd, bound):
    private = copy.deepcopy(bound)
    private.load_state_dict(twos(private))
    assert (private[1].weight == 2).all()
    if CAN_ASSIGN:
        other = weightd.torch.bind(net("meta"), weightd.attach("m"))
        other.load_state_dict(twos(other), assign=True)
        other.load_state_dict(twos(other))
        assert (other[1].weight == 2).all()
    with weightd.torch.flat(bound, "m") as flat:
        bound.load_state_dict(twos(bound))
        flat.publish()
        with pytest.raises(weightd.Denied, match=r"0.weight, .* and 2 more: in published"):  # its buffers too
            bound.load_state_dict(twos(bound))
    assert (weightd.attach("m")["1.weight"].torch() == 2).all()


def test_published_flat_module_is_refreshed_though_its_buffers_cannot_be_written(weightd, bound):
    with weightd.torch.flat(bound, "m") as flat:
        flat.module.load_state_dict(twos(bound))
        flat.publish()
    weightd.torch.refresh(flat.module, weightd.attach("m", version=1))
    assert (bound[0].running_mean == 0).all() and (bound[1].weight == 1).all()
    flat.module.train()(torch.ones(2, 4))
    assert bound[0].num_batches_tracked == 1


def test_buffers_over_one_storage_stay_so_when_they_leave_published_memory(weightd):
    module = net()
    module[0].running_var = module[0].running_mean.detach()
    weightd.torch.flat(module, "m").publish()
    weightd.torch.refresh(module, weightd.attach("m"))
    module[0].running_mean.fill_(5)
    assert (module[0].running_var == 5).all()
    assert (weightd.attach("m")["0.running_mean"].torch() == 0).all()


def test_renamed_entries_are_found_too(weightd):
    checkpoint = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

    def wrapped(device):
        return torch.nn.Sequential(checkpoint.checkpoint_wrapper(torch.nn.Linear(4, 4, device=device)))

    weightd.torch.flat(wrapped("meta"), "m").publish()
    module = weightd.torch.bind(wrapped("meta"), weightd.attach("m"))
    with pytest.raises(weightd.Denied, match="in published memory"):
        module.load_state_dict(twos(module))


def test_refusal_costs_one_hook_for_each_module_however_often_it_is_refreshed(weightd, bound):
    for _ in range(3):
        weightd.torch.refresh(bound, weightd.attach("m"))
    assert [len(module._load_state_dict_pre_hooks) for module in bound.modules()] == [1, 1, 1]


def test_optimizer_finds_nothing_to_step(bound):
    assert not any(parameter.requires_grad for parameter in bound.parameters())
    torch.optim.SGD(bound.parameters(), lr=1).step()
    assert (bound[1].weight == 1).all()
