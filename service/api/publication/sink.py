"""A file that cannot be rewound, whose bytes are sent as they come."""


class Sink:
    """A file that cannot be rewound: what was written waits in it to be taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        """Take a part in."""
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        """Do nothing: what was written stays until it is taken."""

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole
