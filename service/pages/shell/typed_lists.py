"""Lists as people type them: separated by commas, semicolons or line breaks."""

import re

_MARKS = re.compile(r"[,;\r\n]")
_MOST_WORDS = 1000  # of a list: as many accounts as /v1 takes


def names_of(text: str) -> list[str]:
    """Return the names of a list; a name may have blanks inside."""
    return [name.strip() for name in _MARKS.split(text) if name.strip()]


def words_of(text: str) -> list[str]:
    """Return the words of a list, which blanks separate too; beyond the most, the rest of the text is one."""
    return _MARKS.sub(" ", text).split(None, _MOST_WORDS)
