"""Every code block of docs/nki.md runs, and prints what the page shows."""
from __future__ import annotations

import contextlib
import io
import linecache
import re
import warnings
from pathlib import Path

import neuron_eager

PAGE = Path(__file__).parents[2] / "docs" / "nki.md"


def blocks():
    """(code, expected output) of each python block; the output is the text block that follows it, if one does."""
    found = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for i, (kind, text) in enumerate(found):
        if kind == "python":
            yield text, found[i + 1][1] if i + 1 < len(found) and found[i + 1][0] == "text" else ""


def run(code, names):
    """What a block prints, with the message of an error it ends in."""
    output = io.StringIO()
    linecache.cache["session.py"] = (len(code), None, code.splitlines(keepends=True), "session.py")
    with contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(code, "session.py", "exec"), names)
        except neuron_eager.errors.NeuronEagerError as error:
            print(f"{type(error).__name__}: {error}", file=output)
    return output.getvalue()


def test_every_block(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path))
    names: dict[str, object] = {"__name__": "session"}
    for code, expected in blocks():
        assert run(code, names) == expected, code
