"""Reference page of the settings, derived from the settings: the output of ``python -m service settings``."""

import json
from typing import Any

from service.accepted_values import accepted
from service.settings import Settings

_INTRODUCTION = """\
# Configuration

On this page you can look up every variable that configures the service: its values, its default and its meaning.

The service reads its environment once, when it starts. An empty variable counts as unset. The service ignores an
unknown variable and names it in the log. If it cannot use a value, it does not start, and says which variable is wrong
and what it expected. `python -m service settings` prints this page.

| variable | value | default | meaning |
|---|---|---|---|
"""


def reference() -> str:
    """Return all settings as Markdown."""
    properties = Settings.model_json_schema()["properties"]
    return _INTRODUCTION + "".join(_row(name, schema) for name, schema in properties.items())


def _row(name: str, schema: dict[str, Any]) -> str:
    cells = (f"`SERVICE_{name.upper()}`", accepted(schema), _default(schema.get("default")), schema["description"])
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(value: object) -> str:
    if value is None or value == []:
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
