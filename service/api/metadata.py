"""Descriptive metadata: what only people know of an account or a release, in the words of the deployments registry.

The fields are those of a registry entry that the ledger cannot fill by itself, by the same names and without their
sections. All are optional here; ``registry`` says which an entry needs.
"""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from service.api.exact import Label, Short, Strict
from service.ledger.descriptions import Patch


def _day(text: str) -> str:
    try:
        if date.fromisoformat(text).isoformat() == text:  # which reads other forms of ISO 8601 too
            return text
    except ValueError:
        pass
    raise ValueError("expected a day as YYYY-MM-DD")


_TEXT = r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*"
Prose = Annotated[str, StringConstraints(max_length=10_000, pattern=rf"^{_TEXT}[^\x00-\x20\x7f]{_TEXT}$")]
"""Text that says something; Markdown, in a registry."""
Day = Annotated[str, AfterValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]
Names = Annotated[list[Label], Field(min_length=1, max_length=100)]
ProductType = Literal[
    "Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API", "SQL queries"
]
Slug = Annotated[str, StringConstraints(max_length=200, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


def _said(description: str) -> Any:
    return Field(None, description=description)


class BasicFields(Strict):
    """The data product."""

    name: Label | None = _said("Of the data product; otherwise the release's or the account's name.")
    data_curators: Names | None = _said("Who publishes it.")
    intended_use: Prose | None = _said("What it is for.")
    data_product_type: ProductType | None = _said("What kind of thing is published.")
    data_product_region: Prose | None = _said("Where the persons are, or whose law applies.")
    description: Prose | None = _said("Of the data product; otherwise the account's description.")
    publication_date: Day | None = _said("YYYY-MM-DD; of several publications the first.")
    data_product_sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = (
        _said("The domain that the data describe.")
    )


class VariantFields(Strict):
    """What the protection is about."""

    data_domain: Prose | None = _said("Which datasets are possible.")
    unprotected_quantities: Prose | None = _said("What is published without noise: invariants.")


class LossFields(Strict):
    """What is to be said of the unit and the parameters beside what the ledger says."""

    privacy_unit_details: Prose | None = _said("Added to what the ledger says of neighbouring datasets.")
    privacy_parameters_details: Prose | None = _said("Added to what the ledger says of the parameters.")


class ModelFields(Strict):
    """How, and to whom, the data are released."""

    model_name: Literal["Local", "Central", "Shuffle", "Federated", "Varies"] | None = _said("Who adds the noise.")
    model_name_details: Prose | None = _said("More about it.")
    actors: Prose | None = _said("Who sees what, and what is assumed of them.")
    release_type: Literal["One release", "Many releases"] | None = _said("Otherwise by what the ledger holds.")
    release_type_details: Prose | None = _said("Which further releases are planned, and when budgets begin anew.")
    data_source_type: Literal["Static", "Dynamic"] | None = _said("Whether new data come in over time.")
    data_source_type_details: Prose | None = _said("More about it.")
    access_type: Literal["Interactive", "Non-interactive"] | None = _said("Whether analysts send queries.")
    access_type_details: Prose | None = _said("How analysts share the budget, and whether they may collude.")


class AccountingFields(Strict):
    """What is done with the noisy counts, and how losses add up."""

    post_processing: Prose | None = _said("What is done to the noisy counts before they are published.")
    composition: Prose | None = _said("Added to what the ledger says of the plan.")


class ImplementationFields(Strict):
    """How it was made, and why so."""

    preprocessing_and_hyperparameter_tuning: Prose | None = _said("What was looked at before, and what that cost.")
    mechanisms: Prose | None = _said("Added to what the ledger says of the mechanisms: the data's security, the code.")
    justification: Prose | None = _said("How the parameters were decided on.")


class AdministrativeFields(Strict):
    """About the entry."""

    sources: Prose | None = _said("Links to papers, and to the data product.")
    notes: Prose | None = _said("Anything else.")
    registry_authors: Names | None = _said("Who wrote the entry; needed where sources or notes are given.")


class Metadata(
    AdministrativeFields,
    ImplementationFields,
    AccountingFields,
    ModelFields,
    LossFields,
    VariantFields,
    BasicFields,
):
    """What only people know, for the deployments registry: at most 65,536 characters in all, as JSON.

    In a change, what is null is taken away and what is left out stays as it is.
    """

    url_slug: Slug | None = _said("Of the registry's page; otherwise made from the names.")


class DescribeRelease(Short):
    """An edit of what people say of a release."""

    metadata: Metadata


def patch_of(metadata: Metadata) -> Patch:
    """What a change says, nulls included."""
    return metadata.model_dump(exclude_unset=True)
