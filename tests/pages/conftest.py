"""The application as the tests of the HTTP interface have it."""

from tests.api.conftest import embedded, still

__all__ = ["embedded", "still"]
