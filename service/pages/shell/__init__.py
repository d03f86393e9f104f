"""Parts that all pages share: sessions, forms, calls of ``/v1``, layout and formatting."""
