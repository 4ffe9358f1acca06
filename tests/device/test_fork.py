"""A forked child runs forward and backward, whatever the parent did before."""
import torch


def backward(device):
    w = torch.ones(3, device=device, requires_grad=True)
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_fork_before_any_backward(in_fork):
    x = torch.randn(3, device="neuron")
    in_fork(lambda: (x + x).cpu())


def test_fork_after_backward(in_fork):
    for device in ("neuron", "cpu"):
        backward(device)
    for device in ("neuron", "cpu"):
        in_fork(lambda: backward(device))   # noqa: B023  (runs at once)


def test_fork_in_a_fork(in_fork):
    backward("neuron")
    in_fork(lambda: (backward("neuron"), in_fork(lambda: backward("neuron"))))


def test_the_child_sees_the_parents_tensors(in_fork):
    x = torch.arange(3.0, device="neuron")

    def child():
        assert x.tolist() == [0, 1, 2]
        x.zero_()

    in_fork(child)
    assert x.tolist() == [0, 1, 2]


def test_no_device_threads(python):
    assert python("""
import pathlib, torch, neuron_eager
x = torch.ones(3, device="neuron", requires_grad=True)
(x * 2).sum().backward()
names = [(task / "comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
print([name for name in names if "autograd" in name])
""") == "[]\n"


def test_backward_before_the_import(python):
    assert python("""
import os, torch
torch.ones(1, requires_grad=True).sum().backward()
import neuron_eager
x = torch.ones(3, device="neuron", requires_grad=True)
(x * 2).sum().backward()
pid = os.fork()
if pid == 0:
    y = torch.ones(3, device="neuron", requires_grad=True)
    (y * 2).sum().backward()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
""", timeout=60) == "0\n"
