"""What and where the device is: names, factories, moving, defaults, several devices."""
import pytest
import torch
from torch import nn

import neuron_eager


def test_a_neuron_tensor_is_a_plain_tensor():
    x = torch.randn(2, 3).to("neuron")
    assert type(x) is torch.Tensor
    assert x.device == torch.device("neuron:0") and x.get_device() == 0 and x.is_neuron
    assert not x.cpu().is_neuron
    assert x.data_ptr() % 64 == 0


@pytest.mark.parametrize("make", [
    lambda d: torch.zeros(2, 3, device=d), lambda d: torch.ones(2, dtype=torch.bfloat16, device=d),
    lambda d: torch.full((2,), 3.5, device=d), lambda d: torch.arange(5, device=d),
    lambda d: torch.linspace(0, 1, 7, device=d), lambda d: torch.logspace(0, 1, 3, device=d),
    lambda d: torch.eye(3, 4, device=d), lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    lambda d: torch.tensor(3.0, device=d), lambda d: torch.empty(0, 4, device=d), lambda d: torch.tensor([], device=d),
    lambda d: torch.tril_indices(3, 3, device=d), lambda d: torch.ones(2, device=d).new_zeros(3),
    lambda d: torch.zeros_like(torch.ones(2, 2, device=d)), lambda d: torch.full_like(torch.ones(2, device=d), 7),
    lambda d: torch.as_tensor([1.5], device=d), lambda d: torch.hann_window(5, device=d),
    lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
])
def test_factories(make, equal):
    equal(make("neuron"), make("cpu"))


def test_random_factories():
    for x in (torch.randn(3, device="neuron"), torch.rand(3, device="neuron"), torch.randperm(3, device="neuron"),
              torch.randint(0, 5, (3,), device="neuron"), torch.rand_like(torch.ones(3, device="neuron"))):
        assert x.is_neuron and x.shape == (3,)


def test_neuron_method_on_tensors_modules_sequences_and_storages(equal):
    c = torch.randn(3)
    equal(c.neuron(), c)
    x = c.neuron()
    assert x.neuron() is x
    assert nn.Linear(2, 2).neuron().weight.is_neuron
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)]).neuron()
    assert packed.is_neuron and packed.data.is_neuron
    storage = c.untyped_storage()
    assert not storage.is_neuron
    moved = storage.neuron()
    assert moved.is_neuron and bytes(moved.cpu()) == bytes(storage)


def test_to_forms():
    c = torch.randn(3)
    for x in (c.to("neuron"), c.to("neuron:0"), c.to(torch.device("neuron")), c.to("neuron", non_blocking=True),
              c.to(device="neuron", dtype=torch.float16), c.to(torch.zeros(1, device="neuron"))):
        assert x.device == torch.device("neuron:0")
    x = c.to("neuron")
    assert x.to("neuron") is x and x.to("neuron", copy=True).data_ptr() != x.data_ptr()
    assert x.to("cpu", torch.float64).dtype == torch.float64
    assert x.type(torch.int32).is_neuron


def test_default_device():
    torch.set_default_device("neuron")
    try:
        assert torch.randn(2).is_neuron and torch.tensor([1]).is_neuron and nn.Linear(2, 2).weight.is_neuron
        y = torch.ones(3, requires_grad=True)
        (y * 2).sum().backward()
        assert y.grad.is_neuron
    finally:
        torch.set_default_device(None)
    assert torch.randn(2).device.type == "cpu"


def test_device_context():
    with torch.device("neuron"):
        assert torch.empty(2).is_neuron and nn.Linear(2, 2).weight.is_neuron
        assert torch.empty(2, device="cpu").device.type == "cpu"


def test_meta_module_to_empty():
    with torch.device("meta"):
        m = nn.Linear(2, 2)
    m.to_empty(device="neuron")
    for fill in (nn.init.kaiming_uniform_, nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.zeros_):
        fill(m.weight)
    assert m.weight.is_neuron and m.weight.abs().sum().item() == 0


def test_device_module():
    assert torch.get_device_module("neuron") is torch.neuron is torch.get_device_module()
    import torch.neuron as module
    assert module.is_available() and module.is_initialized() and module.device_count() == 1
    assert module.get_device_name() == "neuron:0"
    assert module.get_device_properties().total_memory > 1 << 20
    assert module.is_bf16_supported() and torch.bfloat16 in module.get_amp_supported_dtype()
    module.init()
    module.synchronize()
    module._sleep(10)


# The names of TorchNeuron's device module
TORCH_NEURON = [
    "memory", "is_initialized", "current_device", "set_device", "get_device_name", "device_count",
    "is_available", "init", "get_amp_supported_dtype", "_is_in_bad_fork", "manual_seed", "manual_seed_all",
    "seed", "seed_all", "initial_seed", "get_rng_state", "set_rng_state", "device", "Stream", "stream",
    "current_stream", "default_stream", "set_stream", "synchronize", "wait_stream", "wait_event",
    "record_event", "query", "Event", "get_device_properties", "reset_peak_memory_stats", "memory_stats",
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "reset_accumulated_memory_stats", "memory_summary", "empty_cache", "_sleep", "get_dynamo_metrics",
    "reset_dynamo_metrics", "is_bf16_supported",
]


def test_device_module_has_the_names_of_torch_neuron():
    assert [name for name in TORCH_NEURON if not hasattr(torch.neuron, name)] == []


def test_accelerator():
    a = torch.accelerator
    assert a.is_available() and a.current_accelerator().type == "neuron" and a.device_count() == 1
    assert a.current_device_index() == 0
    a.set_device_index(0)
    a.set_device_index(-1)
    a.synchronize()
    with a.device_index(0):
        pass
    with a.device_index(None):
        pass
    assert torch.float32 in a.get_device_capability()["supported_dtypes"]


@pytest.mark.parametrize("use", [
    lambda: torch.zeros(2, device="neuron:9"), lambda: torch.empty(2, device="neuron:9"),
    lambda: torch.tensor([1], device="neuron:9"), lambda: torch.randn(2, device="neuron:9"),
    lambda: torch.ones(2).to("neuron:9"), lambda: torch.ones(2, device="neuron").to("neuron:9"),
    lambda: nn.Linear(2, 2).to("neuron:9"), lambda: torch.ones(2).neuron(9), lambda: torch.neuron.set_device(9),
    lambda: torch.neuron.synchronize(9), lambda: torch.neuron.memory_allocated("neuron:9"),
    lambda: torch.UntypedStorage(4, device="neuron:9"), lambda: torch.Generator(device="neuron:9"),
])
def test_a_device_that_does_not_exist(use):
    with pytest.raises(neuron_eager.errors.InvalidDeviceError, match="neuron:9 does not exist: valid indices are 0"):
        use()


def test_mixing_devices_is_refused():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="neuron") + torch.ones(3)


def test_a_cpu_scalar_tensor_mixes(equal):
    equal(torch.ones(3, device="neuron") + torch.tensor(2.0), torch.full((3,), 3.0))


def test_several_devices(python):
    assert python("""
import torch, neuron_eager
assert torch.neuron.device_count() == 3 == torch.accelerator.device_count()
x = torch.randn(3, device="neuron:2", requires_grad=True)
y = x * 2
assert y.device.index == 2
y.sum().backward()
assert x.grad.device.index == 2 and torch.equal(x.grad.cpu(), torch.full((3,), 2.0))
with torch.neuron.device(1):
    assert torch.neuron.current_device() == 1 == torch.accelerator.current_device_index()
    assert torch.randn(2, device="neuron").device.index == 1
    assert torch.ones(2).neuron().device.index == 1
    assert torch.neuron.memory_allocated() == 0
assert torch.neuron.current_device() == 0
torch.neuron.set_device("neuron:2")
assert torch.zeros(1, device="neuron").device.index == 2
assert torch.equal(x.to("neuron:0").cpu(), x.cpu())
try:
    x + torch.ones(3, device="neuron:0")
except RuntimeError as error:
    assert "same device" in str(error) and "neuron:2" in str(error)
else:
    raise AssertionError("devices were mixed")
import threading
seen = []
t = threading.Thread(target=lambda: seen.append(torch.neuron.current_device())); t.start(); t.join()
assert seen == [0]
torch.neuron.manual_seed_all(3)
assert torch.equal(torch.rand(4, device="neuron:0").cpu(), torch.rand(4, device="neuron:1").cpu())
print("ok")
""", NEURON_EAGER_DEVICE_COUNT="3") == "ok\n"
