"""The form of the metadata of accounts and releases, derived from the fields of the HTTP API.

A form changes only the fields that were edited. Each field carries a digest of its earlier text, so that two people who
edit at the same time do not overwrite each other's text unknowingly.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from service.api.publication.registry_entry import Basic
from service.api.schemas.metadata import (
    AccountingFields,
    AdministrativeFields,
    BasicFields,
    ImplementationFields,
    LossFields,
    Metadata as MetadataModel,
    ModelFields,
    VariantFields,
)
from service.ledger.descriptions.metadata import Metadata
from service.pages.shell.figures import in_words

Kind = Literal["line", "lines", "prose", "day", "choice"]
_LONG = 1000  # characters from which a field gets a text area


class MetadataField(NamedTuple):
    """A field of the form; ``needed``: a registry entry requires it."""

    name: str
    label: str
    hint: str
    kind: Kind
    options: Sequence[str]
    needed: bool

    def pairs(self, text: str) -> list[tuple[str, str]]:
        """Return pairs of value and label: the choices, and the present value even if it is no longer one of them."""
        texts = [*self.options, *({text} - {"", *self.options})]
        return [("", "not specified"), *((one, one) for one in texts)]


class Section(NamedTuple):
    """A group of fields."""

    title: str
    fields: Sequence[MetadataField]


def _sections() -> list[Section]:
    groups: dict[str, type[BaseModel]] = {
        "The data product": BasicFields,
        "What is protected": VariantFields,
        "Privacy loss": LossFields,
        "How it is released": ModelFields,
        "Noisy counts and composition": AccountingFields,
        "How it was made": ImplementationFields,
        "The entry": AdministrativeFields,
    }
    properties = MetadataModel.model_json_schema()["properties"]
    sections = {title: list(model.model_fields) for title, model in groups.items()}
    rest = [name for name in properties if not any(name in names for names in sections.values())]
    sections["The entry"] += rest
    return [
        Section(title, [_field_of_schema(name, properties[name]) for name in names])
        for title, names in sections.items()
    ]


def _field_of_schema(name: str, schema: Mapping[str, Any]) -> MetadataField:
    (value_schema,) = [one for one in schema["anyOf"] if one["type"] != "null"]
    kind: Kind = "prose" if value_schema.get("maxLength", 0) >= _LONG else "line"
    if "enum" in value_schema:
        kind = "choice"
    elif value_schema["type"] == "array":
        kind = "lines"
    elif value_schema.get("format") == "date":
        kind = "day"
    own = Basic.model_fields.get(name)
    needed = own is not None and own.is_required()
    return MetadataField(name, in_words(name), schema["description"], kind, value_schema.get("enum", ()), needed)


SECTIONS = _sections()
_FIELDS = {field.name: field for section in SECTIONS for field in section.fields}


def field_texts(metadata: Metadata) -> dict[str, str]:
    """Return the text of each field as a browser sends it unedited: lists as lines, without surrounding blanks."""
    return {name: _field_text(metadata.get(name, "")) for name in _FIELDS}


def _field_text(value: str | list[str]) -> str:
    lines = value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else "\n".join(value)
    return lines.strip()


def digests(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the digests that identify the texts; an empty text has none."""
    return {name: text and hashlib.sha256(text.encode()).hexdigest()[:32] for name, text in texts.items()}


class Edit(NamedTuple):
    """The submitted texts of a form, and the state in which it was opened.

    Attributes:
        texts: of all fields, as typed.
        before: digests of the texts before the edit.
    """

    texts: Mapping[str, str]
    before: Mapping[str, str]

    @classmethod
    def none(cls, present: Mapping[str, str]) -> "Edit":
        """Return an edit that changes none of the present texts."""
        return cls(present, digests(present))

    def applied_to(self, present: Mapping[str, str]) -> "Edit":
        """Return this edit applied to the present texts."""
        return Edit({**present, **{name: self.texts[name] for name in self.changed()}}, digests(present))

    def changed(self) -> list[str]:
        """Return the names of the edited fields."""
        now = digests(self.texts)
        return [name for name in _FIELDS if now[name] != self.before[name]]

    def patch(self) -> dict[str, str | list[str] | None]:
        """Return the merge patch for ``/v1``: an emptied field becomes null."""
        return {name: _patch_value(_FIELDS[name], self.texts[name]) for name in self.changed()}

    def conflicting(self, present: Mapping[str, str]) -> list[str]:
        """Return the names of the edited fields that another user has changed meanwhile, to a different text."""
        there = digests(present)
        return [
            name for name in self.changed() if there[name] != self.before[name] and present[name] != self.texts[name]
        ]


def edit_of(text: Callable[[str], str]) -> Edit:
    """Return the edit that a form submits; ``text`` returns the text of a field."""
    return Edit({name: _field_text(text(name)) for name in _FIELDS}, {name: text(f"was-{name}") for name in _FIELDS})


def _patch_value(field: MetadataField, text: str) -> str | list[str] | None:
    if not text:
        return None
    return [line.strip() for line in text.split("\n") if line.strip()] if field.kind == "lines" else text


def field_of(pointer: str) -> str:
    """Return the form field of a JSON pointer into the request; empty if the pointer is that of the whole request."""
    name = [*pointer.split("/"), "", "", ""][2]
    return name if name in _FIELDS else ""
