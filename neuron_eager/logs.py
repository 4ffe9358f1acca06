"""Log levels by module. Loggers are named by module path, so `TORCH_LOGS="+neuron_eager"` works too.

    NEURON_EAGER_LOGS="+dispatch,fallback,-opcache"

A name alone shows INFO and above, with `+` DEBUG, with `-` ERROR. Without the setting warnings are shown, through
whatever handlers the program has installed.
"""
from __future__ import annotations

import logging

from .config import config
from .errors import SettingError

MODULES = ("device", "dispatch", "executors", "kernels", "native", "nki", "opcache", "tools")
ALIASES = {
    "all": "",
    "cache": "opcache",
    "compile": "native.compile",
    "fallback": "dispatch.fallback",
}
_LEVELS = {"+": logging.DEBUG, "-": logging.ERROR}


def levels(text: str) -> dict[str, int]:
    """Logger name → level, from the text of the setting.

    Raises:
        SettingError: a name that is no module of this package.
    """
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        level, name = _LEVELS.get(part[0], logging.INFO), part.lstrip("+-")
        name = ALIASES.get(name, name).removeprefix("neuron_eager").lstrip(".")
        if name and name.split(".")[0] not in MODULES:
            known = ", ".join(sorted({*MODULES, *ALIASES}))
            raise SettingError(variable="NEURON_EAGER_LOGS", value=text,
                               allowed=f"names from {known}, each with + or - before it")
        found[f"neuron_eager.{name}".rstrip(".")] = level
    return found


_handler = logging.StreamHandler()
_handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
_set: set[str] = set()


def apply() -> None:
    """Set the levels that `config.logs` asks for; called at import and when the setting is assigned."""
    wanted = levels(config.logs)
    for name in _set - wanted.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)
    _set.clear()
    _set.update(wanted)
    package = logging.getLogger("neuron_eager")
    if wanted and _handler not in package.handlers and not package.handlers:
        package.addHandler(_handler)
    elif not wanted:
        package.removeHandler(_handler)
