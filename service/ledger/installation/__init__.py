"""The installation: its secret, its journal, and the high-water mark of all journals."""
