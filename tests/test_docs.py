"""Every Python block of the pages in docs/ runs, and prints what the page shows.

A `text` block below a `python` block is its output, `...` standing for what differs from run to run. Each page is one
session in a process of its own: this file, run with the path of a page, executes it.
"""
from __future__ import annotations

import contextlib
import doctest
import io
import json
import linecache
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(p.name for p in DOCS.glob("*.md") if "```python" in p.read_text() and p.name != "nki.md")


def blocks(page):
    """(code, output shown below it) of each Python block of a page."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    for i, (kind, text) in enumerate(found):
        if kind == "python":
            yield text, found[i + 1][1] if i + 1 < len(found) and found[i + 1][0] == "text" else ""


def execute(page):
    """What each block prints, with the message of an error it ends in."""
    names = {"__name__": "session"}
    for number, (code, _) in enumerate(blocks(page), 1):
        file, output = f"page-{number}.py", io.StringIO()
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        with contextlib.redirect_stdout(output), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(compile(code, file, "exec"), names)
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
        yield output.getvalue()


@pytest.mark.parametrize("name", PAGES)
def test_page(name, tmp_path):
    environment = {**os.environ, "NEURON_EAGER_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, __file__, str(DOCS / name)], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    checker = doctest.OutputChecker()
    wrong = [f"{code}\nprints\n{printed}\nand the page shows\n{shown}"
             for (code, shown), printed in zip(blocks(DOCS / name), got, strict=True)
             if not checker.check_output(shown, printed, doctest.ELLIPSIS)]
    assert not wrong, "\n\n".join(wrong)


def test_links():
    """Links between pages, and to files of this repository, lead somewhere."""
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        prose = re.sub(r"^```.*?^```$|`[^`]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", prose):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


if __name__ == "__main__":
    printed = list(execute(Path(sys.argv[1])))
    print(json.dumps(printed))
