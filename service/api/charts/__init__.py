"""Charts of figures that the JSON answers state."""
