"""Estimates of the time that a write transaction takes; requests above a bound are refused before they begin.

Other requests wait meanwhile. On SQLite these are all that write; on PostgreSQL those that charge an account of the
line.
"""

from service.errors import InvalidInput

_MOST_MICROSECONDS = 2_000_000
# A byte of noisy counts, and the square of their number: on PostgreSQL libpq moves the rest of a large parameter for
# each piece that the socket takes. The names of a tabulation are bounded by themselves and take 0.2 s at most.
_BYTE = {"sqlite": 0.006, "postgresql": 0.01}
_SQUARE = {"sqlite": 0.0, "postgresql": 1.6e-10}
_COUNT = 8  # bytes at most; not the width of the stored values, which would make a refusal depend on true counts


def require_brief(microseconds: float, pointer: str, causes: str) -> None:
    """Refuse a write that takes long.

    Args:
        microseconds: the estimate.
        causes: the words for the message that say what takes the time.

    Raises:
        InvalidInput: the estimate is above the bound.
    """
    if microseconds > _MOST_MICROSECONDS:
        raise InvalidInput.at(
            pointer,
            f"expected at most {_MOST_MICROSECONDS / 1e6:g} seconds of writing, got an estimated"
            f" {microseconds / 1e6:.2f}: {causes}",
        )


def require_few_counts(kind: str, counts: int, pointer: str) -> None:
    """Refuse a draw or tabulation that takes long to write, by facts that are known before any noise is drawn.

    Args:
        kind: of the database.
        counts: the number of noisy counts that are stored, or an upper bound.

    Raises:
        InvalidInput: the estimate is above the bound; the message says how much of each there is.
    """
    size = _COUNT * counts
    causes = f"number of noisy counts {counts}, their bytes {size}"
    require_brief(size * _BYTE[kind] + size**2 * _SQUARE[kind], pointer, causes)
