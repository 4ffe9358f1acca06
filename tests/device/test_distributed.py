"""torch.distributed with the backend "neuron": two processes."""
import os
import subprocess
import sys

import pytest

PRELUDE = """
import sys, torch, neuron_eager, torch.distributed as dist
from torch import nn
rank = int(sys.argv[1])
dist.init_process_group("neuron", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
def mine(value=1.0):
    return torch.full((2,), value + rank, device="neuron")
def empty(n=2):
    return torch.empty(n, device="neuron")
"""

COLLECTIVES = """
x = mine(); dist.all_reduce(x); assert x.tolist() == [3, 3]
x = mine(); work = dist.all_reduce(x, async_op=True); work.wait(); assert x.tolist() == [3, 3]
x = mine(); dist.broadcast(x, 1); assert x.tolist() == [2, 2]
x = mine(); dist.reduce(x, 0); assert rank or x.tolist() == [3, 3]
parts = [empty(), empty()]; dist.all_gather(parts, mine()); assert [p[0].item() for p in parts] == [1, 2]
out = empty(4); dist.all_gather_into_tensor(out, mine()); assert out.tolist() == [1, 1, 2, 2]
parts = [empty(), empty()]; dist.gather(mine(), parts if rank == 0 else None, 0)
assert rank or [p[0].item() for p in parts] == [1, 2]
out = empty(); dist.scatter(out, [mine(5.0), mine(7.0)] if rank == 0 else None, 0)
assert out[0].item() == (7 if rank else 5)
out = empty(); dist.reduce_scatter(out, [mine(), mine(3.0)]); assert out[0].item() == (7 if rank else 3)
out = empty(); dist.reduce_scatter_tensor(out, torch.arange(4.0, device="neuron"))
assert out.tolist() == ([4, 6] if rank else [0, 2])
parts = [empty(), empty()]; dist.all_to_all(parts, [mine(10.0), mine(20.0)])
assert [p[0].item() for p in parts] == ([20, 21] if rank else [10, 11])
out = empty(); dist.all_to_all_single(out, mine(3.0)); assert out.tolist() == [3, 4]
x, y = mine(), empty()
for w in (dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)): w.wait()
assert y[0].item() == 2 - rank
objects = [None, None]; dist.all_gather_object(objects, {"rank": rank}); assert objects == [{"rank": 0}, {"rank": 1}]
group = dist.new_group([0, 1]); x = mine(); dist.all_reduce(x, group=group); assert x.tolist() == [3, 3]
dist.barrier()
torch.manual_seed(rank)
model = nn.Linear(3, 3).neuron()
parallel = nn.parallel.DistributedDataParallel(model)
parallel(torch.full((2, 3), rank + 1.0, device="neuron")).sum().backward()
assert model.weight.grad.is_neuron and model.weight.grad.tolist() == [[3.0] * 3] * 3
dist.destroy_process_group()
"""

SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = nn.Linear(4, 4).neuron()
fully_shard(model, mesh=init_device_mesh("neuron", (2,)))
model(torch.randn(2, 4, device="neuron")).sum().backward()
assert model.weight.grad.to_local().is_neuron and model.weight.grad.to_local().shape == (2, 4)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("program", [COLLECTIVES, pytest.param(SHARDED, marks=pytest.mark.slow)],
                         ids=["collectives_and_ddp", "fsdp"])
def test_two_processes(program, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(PRELUDE + program)
    ranks = [subprocess.Popen([sys.executable, str(script), str(r), str(tmp_path / "store")], stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) for r in range(2)]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.wait()
