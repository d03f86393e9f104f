"""Descriptive metadata: the facts about an account or a release that only people know, as the registry names them.

The fields are those of a deployments registry entry that the ledger cannot fill by itself, with the same names and
without their sections. All are optional here; ``registry`` lists those that an entry needs.
"""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from service.api.schemas import patterns
from service.api.schemas.exact_numbers import Label, Short, Strict
from service.ledger.descriptions.descriptions import Patch


def _day(text: str) -> str:
    try:
        if date.fromisoformat(text).isoformat() == text:  # which reads other forms of ISO 8601 too
            return text
    except ValueError:
        pass
    raise ValueError("expected a day as YYYY-MM-DD")


Prose = Annotated[str, StringConstraints(max_length=10_000, pattern=patterns.PROSE)]
"""Non-empty text; the registry renders it as Markdown."""
Day = Annotated[str, AfterValidator(_day), WithJsonSchema({"type": "string", "format": "date"})]
Names = Annotated[list[Label], Field(min_length=1, max_length=100)]
ProductType = Literal[
    "Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API", "SQL queries"
]
Slug = Annotated[str, StringConstraints(max_length=200, pattern=patterns.SLUG)]


def _metadata_field(description: str) -> Any:
    return Field(None, description=description)


class BasicFields(Strict):
    """Metadata of the data product."""

    name: Label | None = _metadata_field(
        "The name of the data product; by default the release's or the account's name."
    )
    data_curators: Names | None = _metadata_field("The publishers.")
    intended_use: Prose | None = _metadata_field("The purpose.")
    data_product_type: ProductType | None = _metadata_field("The kind of the published product.")
    data_product_region: Prose | None = _metadata_field("The place of residence of the persons, or the applicable law.")
    description: Prose | None = _metadata_field(
        "The description of the data product; by default the account's description."
    )
    publication_date: Day | None = _metadata_field("YYYY-MM-DD; of several publications the first.")
    data_product_sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = (
        _metadata_field("The domain that the data describe.")
    )


class VariantFields(Strict):
    """Metadata of the object of the protection."""

    data_domain: Prose | None = _metadata_field("The set of possible datasets.")
    unprotected_quantities: Prose | None = _metadata_field(
        "The quantities that are published without noise: invariants."
    )


class LossFields(Strict):
    """Metadata of the unit and the parameters, beside the ledger's statements."""

    privacy_unit_details: Prose | None = _metadata_field("Added to the ledger's statement of neighbouring datasets.")
    privacy_parameters_details: Prose | None = _metadata_field("Added to the ledger's statement of the parameters.")


class ModelFields(Strict):
    """Metadata of the release model and its recipients."""

    model_name: Literal["Local", "Central", "Shuffle", "Federated", "Varies"] | None = _metadata_field(
        "The party that adds the noise."
    )
    model_name_details: Prose | None = _metadata_field("Details of the model.")
    actors: Prose | None = _metadata_field(
        "The parties, the data that each of them sees, and the assumptions about them."
    )
    release_type: Literal["One release", "Many releases"] | None = _metadata_field(
        "By default derived from the ledger."
    )
    release_type_details: Prose | None = _metadata_field(
        "Planned further releases, and the times at which budgets begin anew."
    )
    data_source_type: Literal["Static", "Dynamic"] | None = _metadata_field("Dynamic: new data arrive over time.")
    data_source_type_details: Prose | None = _metadata_field("Details of the data source.")
    access_type: Literal["Interactive", "Non-interactive"] | None = _metadata_field(
        "Interactive: analysts send queries."
    )
    access_type_details: Prose | None = _metadata_field(
        "The division of the budget among analysts, and if they may collude."
    )


class AccountingFields(Strict):
    """Metadata of post-processing and composition."""

    post_processing: Prose | None = _metadata_field("The processing of the noisy counts before publication.")
    composition: Prose | None = _metadata_field("Added to the ledger's statement of the plan.")


class ImplementationFields(Strict):
    """Metadata of the implementation and its reasons."""

    preprocessing_and_hyperparameter_tuning: Prose | None = _metadata_field(
        "Inspections of the data before the release, and their cost."
    )
    mechanisms: Prose | None = _metadata_field(
        "Added to the ledger's statement of the mechanisms: the security of the data, the code."
    )
    justification: Prose | None = _metadata_field("The reasons for the parameters.")


class AdministrativeFields(Strict):
    """Metadata of the entry itself."""

    sources: Prose | None = _metadata_field("Links to papers, and to the data product.")
    notes: Prose | None = _metadata_field("Other remarks.")
    registry_authors: Names | None = _metadata_field(
        "The authors of the entry; needed where sources or notes are given."
    )


class Metadata(
    AdministrativeFields,
    ImplementationFields,
    AccountingFields,
    ModelFields,
    LossFields,
    VariantFields,
    BasicFields,
):
    """The facts for the deployments registry that only people know: at most 65,536 characters in all, as JSON.

    In a change, null removes a field, and an omitted field stays as it is.
    """

    url_slug: Slug | None = _metadata_field("The slug of the registry's page; by default made from the names.")


class DescribeRelease(Short):
    """A change of a release's metadata."""

    metadata: Metadata


def patch_of(metadata: Metadata) -> Patch:
    """Return the fields of a change, with nulls."""
    return metadata.model_dump(exclude_unset=True)
