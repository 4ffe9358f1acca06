"""Stopping inside a kernel: pdb on a pseudo-terminal, under pytest, and in an IPython kernel."""
from __future__ import annotations

import os
import sys
import textwrap

import pytest

pexpect = pytest.importorskip("pexpect")

KERNEL = """
import torch
import neuron_eager
import nki, nki.language as nl, nki.isa as nisa

@nki.jit
def scaled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=3.0)
    {stop}
    nl.store(out, t)                    # the author's line
    return out
"""


def source(stop, *rest):
    return KERNEL.format(stop=stop) + "\n".join(rest) + "\n"


def spawn(tmp_path, *command):
    child = pexpect.spawn(sys.executable, list(command), cwd=str(tmp_path), timeout=90, encoding="utf-8",
                          env={**os.environ, "TERM": "dumb", "PYTHON_COLORS": "0"}, dimensions=(50, 200))
    child.delaybeforesend = None
    return child


def ask(child, command, answer):
    child.sendline(command)
    child.expect(answer)
    child.expect_exact("(Pdb) ")


def look_around(child):
    """At the author's line: look at a tile, its values, and where we are."""
    ask(child, "p t", r"<sbuf t: float32\[2, 2\]\r\n\[\[3\. +3\.\]\r\n \[3\. +3\.\]\]>")
    ask(child, "p t.numpy().sum()", r"12\.0")
    ask(child, "p t.shape, t.dtype, t.buffer", r"\(\(2, 2\), 'float32', sbuf\)")


def test_breakpoint_in_a_kernel_called_by_an_aten_op(tmp_path):
    (tmp_path / "script.py").write_text(source(
        "breakpoint()", "neuron_eager.register_kernel(torch.ops.aten.tanh.default, scaled)",
        "y = torch.tanh(torch.ones(2, 2, device='neuron'))", "print('result', y.cpu().tolist())"))
    child = spawn(tmp_path, "script.py")
    child.expect_exact("(Pdb) ")
    ask(child, "l", r"the author's line")
    look_around(child)
    child.sendline("c")
    child.expect_exact("result [[3.0, 3.0], [3.0, 3.0]]")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_breakpoint_set_from_pdb(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(source("pass", "y = scaled(torch.ones(2, 2, device='neuron'))",
                           "print('result', y.cpu().tolist())"))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "the author's line" in text)
    child = spawn(tmp_path, "-m", "pdb", "script.py")
    child.expect_exact("(Pdb) ")
    ask(child, f"b script.py:{line}", "Breakpoint 1")
    ask(child, "c", r"the author's line")
    look_around(child)
    child.sendline("c")
    child.expect_exact("result [[3.0, 3.0], [3.0, 3.0]]")
    child.sendline("q")
    child.close()


def test_breakpoint_under_pytest(tmp_path):
    (tmp_path / "test_it.py").write_text(source(
        "breakpoint()", "def test_it():", "    with neuron_eager.interpret():",
        "        assert scaled(torch.ones(2, 2))[0, 0] == 3"))
    child = spawn(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    child.expect_exact("(Pdb) ")
    look_around(child)
    child.sendline("c")
    child.expect("1 passed")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_breakpoint_in_an_ipython_kernel(tmp_path):
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    (tmp_path / "author.py").write_text("from IPython.core.debugger import set_trace\n" + source("set_trace()"))
    manager, channels = client.manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        channels.execute(textwrap.dedent("""
            from author import *
            y = scaled(torch.ones(2, 2, device="neuron"))
            print("result", y.cpu().tolist())
        """), allow_stdin=True)
        seen = []
        for command in ("p t", "p t.numpy().sum()", "c"):
            assert "db" in channels.get_stdin_msg(timeout=90)["content"]["prompt"]
            channels.input(command)
        while True:
            message = channels.get_iopub_msg(timeout=90)
            if message["msg_type"] == "stream":
                seen.append(message["content"]["text"])
            elif message["msg_type"] == "error":
                pytest.fail("\n".join(message["content"]["traceback"]))
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle" and \
                    "result" in "".join(seen):
                break
        text = "".join(seen)
        assert "<sbuf t:" in text and "[[3. 3.]" in text and "12.0" in text
        assert "result [[3.0, 3.0], [3.0, 3.0]]" in text
    finally:
        channels.stop_channels()
        manager.shutdown_kernel(now=True)


def test_print_and_assert_in_a_kernel(capsys):
    import torch

    from neuron_eager import interpret, nki
    from neuron_eager.nki import language as nl

    @nki.jit
    def kernel(x):
        t = nl.load(x)
        print("tile", t)
        assert nl.equal(t, nl.full((2, 2), 1.0, nl.float32)), "not all ones"
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    with interpret():
        kernel(torch.ones(2, 2))
        assert "[[1. 1.]" in capsys.readouterr().out
        with pytest.raises(AssertionError, match="not all ones"):
            kernel(torch.zeros(2, 2))
