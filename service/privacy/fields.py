"""Fields that several mechanisms or nodes have in their documents."""

from fractions import Fraction

from service.privacy.grammar import (
    ABOVE_0,
    AT_LEAST_0,
    Constant,
    DocumentForm,
    Either,
    ExactNumber,
    Inner,
    InnerLists,
    Part,
    PartitionNames,
    Parts,
    TextLine,
    TextLines,
    Unit,
    WholeNumber,
)

TAGS = TextLines(
    "tags", description="The subjects about which this reveals something, such as an attribute or a geography."
)
READS = Constant(
    "reads",
    value="nothing capped",
    description="A promise that this reads no attribute on which the account, or one above it, has a cap. An account"
    " with caps requires tags or this promise for each mechanism, on itself or on a node above it.",
)
NAME = TextLine("name", description="Unique in the plan; without one, the path is the name.")
CELLS = (
    WholeNumber(
        "cells",
        description="The number of cells that one neighbouring change can move: by default 1, under replace_one 2.",
    ),
    WholeNumber(
        "cells_added",
        description="Under replace_one: the number of cells that adding or removing one record can move. By default"
        " half of cells, rounded up. State it if a record can also be in no cell, or if records share cells, because"
        " the number can then be larger.",
    ),
    WholeNumber(
        "cells_replaced",
        description="Under add_remove: the number of cells that another value of one record can move, each by at most"
        " sensitivity; 2 for a histogram. Only caps on tags depend on it. By default they count another value as two"
        " records that change together and move the same cells.",
    ),
)
MOVED_BY = ExactNumber(
    "by",
    required=True,
    unit=Unit.COUNTS,
    bound=ABOVE_0,
    whole_stays=True,
    description="The distance by which the record moves each of these cells, in counts: an integer, or a multiple of"
    " granularity. Continuous noise takes any number.",
)
MOVES = InnerLists(
    "moves",
    form=DocumentForm(
        "MovedCells",
        "Cells that one record moves by the same distance.",
        (
            MOVED_BY,
            WholeNumber("cells", default=1, description="The number of cells that it moves by this distance."),
        ),
    ),
    most=100,
    description="Instead of sensitivity and cells, where one record moves cells by different distances, as in weighted"
    " counts or sums over a hierarchy: all that the record can do when it is added or removed, each alternative as a"
    " list of distances with their numbers of cells. Adding a record must move no cell down, as in counts and in sums"
    " of values that are never negative; for other sums state sensitivity and cells. Smaller distances need not be"
    " listed. Under replace_one, a changed record does one of them and undoes another. A loss of one cell, as epsilon"
    " or rho, is that of the largest distance.",
)
PARTITIONS = PartitionNames(
    "partitions",
    description="The partitions of the input that it may be drawn for, or their largest number in each repetition."
    " Draws of others are refused. They must be disjoint sets of records: the ledger counts one charge for all of"
    " them and relies on your promise. By default those of the nearest node above that declares some.",
)
WHOLE_SENSITIVITY = ExactNumber(
    "sensitivity",
    unit=Unit.COUNTS,
    bound=ABOVE_0,
    whole_stays=True,
    default=1,
    description="The distance by which one record moves one cell, in counts: an integer, or a multiple of granularity.",
)
GRANULARITY = ExactNumber(
    "granularity",
    unit=Unit.COUNTS,
    bound=ABOVE_0,
    description="The unit of counts that are not integers, in counts: counts and noise are multiples of it.",
)
SENSITIVITY = ExactNumber(
    "sensitivity",
    unit=Unit.COUNTS,
    bound=ABOVE_0,
    default="1",
    description="The distance by which one record moves one cell, in the unit of the answer.",
)

AT_LEAST = ExactNumber(
    "at_least",
    required=True,
    unit=Unit.COUNTS,
    bound=ABOVE_0,
    whole_stays=True,
    description="The least noisy count that is published, in counts: an integer, or a multiple of granularity.",
)
THRESHOLD = Inner(
    "threshold",
    form=DocumentForm("Threshold", "A threshold below which noisy counts are suppressed.", (AT_LEAST,)),
    description="Suppression, for counts by keys of which the list is itself secret. Of the keys that the data contain,"
    " those are published whose noisy count reaches at_least. One record can make as many keys appear as it moves"
    " cells when it is added, each with a count of at most sensitivity. The probability that one of them is published"
    " is charged as a declared delta.",
)

PARTITIONS_BELOW = PartitionNames(
    "partitions", description="The partitions of each drawn mechanism below that declares none by itself."
)
PART = Part("part", required=True)
PARTS = Parts("parts", required=True)


def scale_or_epsilon(scale: str) -> Either:
    """Return the field of a Laplace law's scale or, instead, of the pure loss that it causes.

    Args:
        scale: the description of the scale.
    """
    epsilon = "Pure loss of one cell, in nats: scale = sensitivity/epsilon."
    return Either(
        ExactNumber("scale", unit=Unit.COUNTS, bound=ABOVE_0, description=scale),
        ExactNumber("epsilon", unit=Unit.NATS, bound=ABOVE_0, description=epsilon),
        lambda sensitivity: sensitivity,
    )


def variance_or_rho(variance: str) -> Either:
    """Return the field of a normal law's variance or, instead, of the zCDP loss that it causes.

    Args:
        variance: the description of the variance.
    """
    rho = "zCDP loss of one cell, in nats: sigma² = sensitivity²/(2 rho)."
    return Either(
        ExactNumber("sigma_squared", unit=Unit.COUNTS_SQUARED, bound=ABOVE_0, description=variance),
        ExactNumber("rho", unit=Unit.NATS, bound=ABOVE_0, description=rho),
        lambda sensitivity: Fraction(sensitivity * sensitivity, 2),
    )


def offset_tails(variance: str, offset: str) -> tuple[ExactNumber, ExactNumber]:
    """Return the fields of a law with offset tails.

    Args:
        variance: the description of sigma².
        offset: the description of m.
    """
    return (
        ExactNumber("sigma_squared", required=True, unit=Unit.COUNTS_SQUARED, bound=ABOVE_0, description=variance),
        ExactNumber("m", required=True, unit=Unit.COUNTS, bound=AT_LEAST_0, description=offset),
    )
