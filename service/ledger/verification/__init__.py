"""Work on whole ledgers: verification, exports, imports, recomputation, backups, and the adoption of older rows."""
