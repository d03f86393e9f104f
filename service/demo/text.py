"""Text that all demos print alike: plain, at most 80 columns."""


def title(text: str) -> str:
    """The heading of a demo."""
    return f"{text}\n{'=' * len(text)}"


def section(text: str) -> str:
    """The heading of a part of it."""
    return f"\n{text}\n{'-' * len(text)}"


def percent(share: float) -> str:
    """A confidence."""
    return f"{100 * share:g} %"
