"""What is installed is what is in the tree: pyproject.toml lists packages one by one, three of which lie elsewhere."""
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    elsewhere = settings["package-dir"]
    outside = {folder: name for name, folder in elsewhere.items()}
    found = set()
    for top in ("neuron_eager", *outside):
        for init in (ROOT / top).rglob("__init__.py"):
            first, *rest = init.parent.relative_to(ROOT).parts
            found.add(".".join((outside.get(first, first), *rest)))
    assert found == set(settings["packages"])
    assert all((ROOT / f"{module}.py").is_file() for module in settings["py-modules"])
