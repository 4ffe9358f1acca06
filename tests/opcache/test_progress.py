"""Long compiles are shown: a rewritten line on a terminal, plain lines elsewhere, nothing at a debugger's prompt."""
from __future__ import annotations

from neuron_eager.opcache import progress as module

LONG = 'opcache.get_or_compile(Key("object", n=1), lambda: time.sleep(0.8) or b"x", op="aten::mm")'
QUICK = "module = sys.modules['neuron_eager.opcache.progress']; module.AFTER, module._TICK = 0.3, 0.05"


def test_plain_lines(processes):
    process = processes.start(f"{QUICK}\n{LONG}")
    processes.finish(process)
    lines = process.errors.splitlines()
    assert lines[0] == "neuron_eager: compiling aten::mm (object)"
    assert lines[1].startswith("neuron_eager: compiled aten::mm (object) in ") and len(lines) == 2


def test_a_quick_compile_is_silent(processes):
    process = processes.start("for n in range(20): opcache.get_or_compile(Key('object', n=n), lambda: b'x')")
    processes.finish(process)
    assert process.errors == ""


def test_off(processes):
    process = processes.start(f"{QUICK}\n{LONG}", NEURON_EAGER_PROGRESS="0")
    processes.finish(process)
    assert process.errors == ""


def test_without_stderr(processes):
    assert processes.run(f"{QUICK}\nsys.stderr = None\nprint({LONG})").strip() == "b'x'"
    assert processes.run(f"{QUICK}\nsys.stderr.close()\nprint({LONG})").strip() == "b'x'"


def test_a_failing_compile_ends_its_line(processes):
    code = f"""{QUICK}
try: opcache.get_or_compile(Key("object", n=1), lambda: time.sleep(0.5) or 1 / 0)
except ZeroDivisionError: print("raised")
"""
    assert processes.run(code).strip() == "raised"


def test_one_rewritten_line_on_a_terminal(terminal):
    screen = terminal(f"{QUICK}\n{LONG}\nprint('done')")
    screen.expect("done")
    shown = screen.before
    assert shown.count("\r\x1b[Kneuron_eager: compiling aten::mm (object), ") >= 2
    assert "\n" not in shown and shown.endswith("\r\x1b[K")
    assert "compiled" not in shown


def test_nothing_at_a_debugger_prompt(terminal):
    screen = terminal(f"{QUICK}\nbreakpoint()\nprint('end')")
    screen.expect(r"\(Pdb\) ")
    screen.sendline(LONG)
    screen.expect("b'x'")
    assert "compiling" not in screen.before
    screen.expect(r"\(Pdb\) ")
    screen.sendline("c")
    screen.expect("end")


def test_under_a_debugger_that_just_runs(terminal):
    """`python -m pdb` keeps its frames on the stack of the program; that alone is no prompt."""
    screen = terminal(f"{QUICK}\nimport pdb\npdb.run({LONG!r}, globals())\nprint('done')")
    screen.expect(r"\(Pdb\) ")
    screen.sendline("c")
    screen.expect("done")
    assert "compiling aten::mm" in screen.before


def test_an_idle_watcher_ends(monkeypatch):
    monkeypatch.setattr(module, "_TICK", 0.01)
    monkeypatch.setattr(module, "_LINGER", 0.03)
    watcher = module._Watcher()
    watcher.end(watcher.begin("something"))
    thread = watcher.thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive() and watcher.thread is None
    watcher.end(watcher.begin("something else"))            # and starts again
    assert watcher.thread is not None
