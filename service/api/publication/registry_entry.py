"""Entries of the public Differential Privacy Deployments Registry, from the ledger and from metadata."""

from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field

from service.api.publication import registry_prose as texts
from service.api.schemas.metadata import (
    AccountingFields,
    AdministrativeFields,
    BasicFields,
    Day,
    ImplementationFields,
    LossFields,
    Metadata as MetadataModel,
    ModelFields,
    Names,
    ProductType,
    Prose,
    VariantFields,
)
from service.errors import Incomplete
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.descriptions.metadata import Metadata
from service.ledger.releases.releases import ReleaseRecord


class Basic(BasicFields):
    """The data product; complete in every entry."""

    name: str
    data_curators: Names
    intended_use: Prose
    data_product_type: ProductType
    data_product_region: Prose
    description: Prose
    publication_date: Day


class Variant(VariantFields):
    """The notion of privacy loss."""

    variant_name: Literal["Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"]


class PrivacyParameters(BaseModel):
    """Upper bounds, rounded up."""

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None


class PrivacyLoss(LossFields):
    """The protected unit and its privacy loss."""

    privacy_unit: str
    privacy_unit_details: str
    privacy_parameters: PrivacyParameters | None = None
    privacy_parameters_details: str


class Accounting(AccountingFields):
    """The composition of losses."""

    composition: str


class Implementation(ImplementationFields):
    """The implementation of the noise."""

    mechanisms: str


class Deployment(BaseModel):
    """A deployment in the registry's sections."""

    basic: Basic
    dp_variant: Variant
    privacy_loss: PrivacyLoss
    deployment_model: ModelFields
    accounting: Accounting
    implementation: Implementation
    administrative: AdministrativeFields | None = None


class RegistryEntry(BaseModel):
    """An entry for the registry; tier is 2 or 3 where it has all fields that the registry's schema names for it."""

    url_slug: str
    status: Literal["Draft"]
    tier: Annotated[int, Field(ge=1, le=3)]
    deployment: Deployment


_SECTIONS: dict[str, type[BaseModel]] = {
    "basic": Basic,
    "dp_variant": Variant,
    "privacy_loss": PrivacyLoss,
    "deployment_model": ModelFields,
    "accounting": Accounting,
    "implementation": Implementation,
    "administrative": AdministrativeFields,
}
TIERS: dict[int, tuple[str, ...]] = {
    2: (
        "variant_name",
        "privacy_unit",
        "privacy_parameters",
        "model_name",
        "release_type",
        "data_source_type",
        "access_type",
    ),
    3: (
        "data_domain",
        "unprotected_quantities",
        "privacy_unit_details",
        "actors",
        "post_processing",
        "composition",
        "preprocessing_and_hyperparameter_tuning",
        "mechanisms",
        "justification",
    ),
}
"""Fields that an entry of a tier must have, beside those of every entry.

Interactive entries of tier 3 also need ``access_type_details``. The two details that are optional by nature do not
count.
"""

_OWN = ("url_slug", "name", "release_type", "release_type_details")  # of the account alone, not of its releases


class _Dumper(yaml.SafeDumper):
    """YAML writer with texts of several lines as blocks, for readability."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def release_entry(owner: AccountRecord, release: ReleaseRecord, drawn: int) -> dict[str, Any]:
    """Return the entry of a release.

    Args:
        drawn: the number of its draws.

    Raises:
        Incomplete: a field that every entry needs is missing.
    """
    plan = release.plan
    metadata = {name: value for name, value in owner.metadata.items() if name not in _OWN} | release.metadata
    known = {
        "name": release.name,
        "description": owner.description,
        "release_type": "One release",
        "url_slug": texts.slug(f"{owner.name} {release.name} {release.id[:8]}"),
        **texts.parameters(owner, plan, release.delta),
        "composition": texts.of_release(owner, release, plan),
        "mechanisms": texts.mechanisms(plan, owner.neighbouring, drawn),
    }
    entry = entry_of(known, metadata, owner.unit, texts.adjacency(owner))
    RegistryEntry.model_validate(entry)  # an entry that breaks the registry's schema is never sent
    return entry


def entry_of(known: dict[str, Any], metadata: Metadata, unit: str, adjacency: str) -> dict[str, Any]:
    """Build the entry: metadata take precedence over the ledger's names, and follow its statements.

    Args:
        known: the fields that the ledger fills in.
        metadata: the fields that people fill in.
        unit: the protected unit.
        adjacency: the definition of neighbouring datasets.

    Raises:
        Incomplete: a field that every entry needs is missing.
    """
    known_fields = known | {"privacy_unit": unit, "privacy_unit_details": adjacency}
    # an import may contain more
    metadata = {name: value for name, value in metadata.items() if name in MetadataModel.model_fields}
    fields: dict[str, Any] = {name: value for name, value in known_fields.items() if value} | metadata
    for name in ("privacy_unit_details", "privacy_parameters_details", "composition", "mechanisms"):
        if name in metadata:
            fields[name] = f"{known_fields[name]}\n\n{metadata[name]}"
    missing = [name for name, field in Basic.model_fields.items() if field.is_required() and name not in fields]
    if fields.keys() & {"sources", "notes"} and "registry_authors" not in fields:
        missing.append("registry_authors")
    if missing:
        raise Incomplete(missing)
    sections = {
        section: {name: fields[name] for name in (*model.__annotations__, *model.model_fields) if name in fields}
        for section, model in _SECTIONS.items()
    }
    return {
        "url_slug": fields["url_slug"],
        "status": "Draft",
        "tier": tier_of(fields),
        "deployment": {section: content for section, content in sections.items() if content},
    }


def tier_of(fields: dict[str, Any]) -> int:
    """Return the completeness of an entry, by the registry's three tiers."""
    if not all(name in fields for name in TIERS[2]):
        return 1
    details = fields["access_type"] != "Interactive" or "access_type_details" in fields
    return 3 if details and all(name in fields for name in TIERS[3]) else 2


def as_yaml(entry: dict[str, Any]) -> str:
    """Return an entry as the registry stores it."""
    text: str = yaml.dump(entry, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text
