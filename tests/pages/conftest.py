"""The application as the tests of the HTTP interface have it."""

from tests.api.conftest import still

__all__ = ["still"]
