"""Other processes: spawn, fork, queues, data loaders."""
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

DEADLINE = 120


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_arguments_and_queues(method, python):
    """Tensors, parameters and modules go to the child and come back, by value."""
    assert python(f"""
import torch, torch.multiprocessing as mp

def child(queue, done, tensor, module, parameter):
    import neuron_eager
    assert tensor.is_neuron and module.weight.is_neuron and type(parameter) is torch.nn.Parameter
    assert module.weight is module.tied.weight
    (parameter * 2).sum().backward()
    nothing = torch.empty(0, 3, device="neuron")
    queue.put((tensor + 1, parameter.grad, module(tensor[:2]).detach(), nothing, tensor.to(torch.bfloat16)))
    tensor.zero_()
    done.get()

if __name__ == "__main__":
    import neuron_eager
    context = mp.get_context({method!r})
    results, done = context.Queue(), context.Queue()
    module = torch.nn.Linear(2, 2)
    module.tied = torch.nn.Linear(2, 2)
    module.tied.weight = module.weight
    module.neuron()
    tensor = torch.arange(3.0, device="neuron")
    parameter = torch.nn.Parameter(torch.ones(3, device="neuron"))
    process = context.Process(target=child, args=(results, done, tensor, module, parameter))
    process.start()
    plus, grad, out, none, half = results.get(timeout=60)
    assert plus.tolist() == [1, 2, 3] and grad.tolist() == [2, 2, 2] and out.is_neuron and none.shape == (0, 3)
    assert half.dtype == torch.bfloat16 and half.tolist() == [0, 1, 2]
    done.put("done")
    process.join(60)
    assert process.exitcode == 0 and tensor.tolist() == [0, 1, 2]
    print("ok")
""", timeout=DEADLINE) == "ok\n"


def test_a_queue_from_a_forked_child(python):
    assert python("""
import torch, neuron_eager, torch.multiprocessing as mp
context = mp.get_context("fork")
queue = context.Queue()
def child(): queue.put(torch.ones(3, device="neuron") * 5)
process = context.Process(target=child); process.start()
x = queue.get(timeout=60)
assert x.tolist() == [5, 5, 5] and x.is_neuron
process.join(60); print(process.exitcode)
""", timeout=DEADLINE) == "0\n"


def test_a_graph_is_not_sent():
    from multiprocessing.reduction import ForkingPickler
    x = torch.ones(2, device="neuron", requires_grad=True)
    with pytest.raises(RuntimeError, match="detach"):
        ForkingPickler.dumps(x * 2)


def test_storages_and_other_dtypes_are_sent():
    from multiprocessing.reduction import ForkingPickler
    for x in (torch.UntypedStorage([1, 2, 3], device="neuron"), torch.UntypedStorage(0, device="neuron")):
        y = pickle.loads(ForkingPickler.dumps(x))
        assert y.is_neuron and y.tolist() == x.tolist()
    for dtype in (torch.float8_e5m2, torch.bool, torch.cfloat, torch.int64):
        x = torch.tensor([[0, 1], [1, 0]]).to(dtype).neuron().t()
        y = pickle.loads(ForkingPickler.dumps(x))
        assert y.dtype == dtype and torch.equal(y.cpu().view(torch.uint8), x.cpu().contiguous().view(torch.uint8))


def test_share_memory_is_harmless():
    x = torch.randn(3, device="neuron")
    assert x.share_memory_() is x


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pin", [False, True])
def test_data_loader(workers, pin):
    data = torch.arange(8.0)
    loader = DataLoader(TensorDataset(data), 4, num_workers=workers, pin_memory=pin, timeout=60 if workers else 0)
    batches = [b[0] for b in loader]
    assert torch.equal(torch.cat([b.to("neuron", non_blocking=True) for b in batches]).cpu(), data)
    assert all(b.is_pinned() == pin for b in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_of_neuron_tensors(workers):
    data = torch.randn(8, 3, device="neuron")
    batches = [b for (b,) in DataLoader(TensorDataset(data), 4, num_workers=workers, timeout=60 if workers else 0)]
    assert torch.equal(torch.cat(batches), data)


def test_pinning():
    x = torch.randn(3)
    y = x.pin_memory()
    assert not x.is_pinned() and y.is_pinned() and y.pin_memory() is y and torch.equal(x, y)
    assert y[1:].is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.neuron().pin_memory()
