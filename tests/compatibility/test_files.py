"""The fixtures are never changed: each version's files are those that it wrote."""

from pathlib import Path

import pytest

from tests.compatibility.files import DIGESTS, VERSIONS, digests


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_the_files_of_a_version_are_kept(version: Path) -> None:
    assert digests(version) == (version / DIGESTS).read_text(encoding="utf-8")
