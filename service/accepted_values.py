"""The accepted values of settings, in words, from their JSON schemas."""

from typing import Any

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
    "array": "a list",
    "string": "text",
    "path": "a path",
    "password": "a secret",
    "object": "a JSON object",
}


def accepted(schema: dict[str, Any]) -> str:
    """Return the accepted values of a setting, as Markdown: ``a whole number from 1 to 64``.

    Args:
        schema: the setting's. Its member ``form`` states in words what a pattern requires.
    """
    (part,) = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    if "enum" in part:
        return "one of " + _listed(part["enum"])
    if form := schema.get("form", part.get("form")):
        return str(form)
    kind = _KINDS.get(part.get("format", "")) or _KINDS[part["type"]]
    if "enum" in (values := part.get("additionalProperties") or {}):
        kind += f" with values of {_listed(values['enum'])}"
    least = f" from {part['minimum']}" if "minimum" in part else ""
    most = f" to {part['maximum']}" if "maximum" in part else ""
    above = f" above {part['exclusiveMinimum']}" if "exclusiveMinimum" in part else ""
    longest = f" of at most {part['maxLength']} characters" if "maxLength" in part else ""
    return f"{kind}{least}{most}{above}{longest}"


def _listed(values: list[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)
