"""Comparison of the database's schema with that which the migrations create in an empty database.

Triggers help to keep entries for ever, and the owner of the tables can remove one without a trace in any row. The
schema that the migrations create is committed beside this module, as a digest for each object. The declarations
(``tables``) cannot serve for this, because a database words them in its own way, and a PostgreSQL server may not be
able to create a second schema to compare with. ``make schema`` writes the file, and a test compares it with fresh
databases of both kinds.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Connection, bindparam, text

from service.errors import StartupRefused
from service.ledger.storage.database import Database
from service.ledger.storage.tables import LAST_ROWID, Base

EXPECTED = Path(__file__).with_suffix(".json")

# Objects that the ledger's statements need.
_READ = ("table ", "column ")
# Objects that can make a statement do something else than it says, or nothing.
_ACTING = ("trigger ", "rule ", "policy ", "row security ")
_SHOWN = 5

_SQLITE = """
SELECT CASE type WHEN 'table' THEN 'table ' || name ELSE type || ' ' || name || ' on ' || tbl_name END, sql
FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name IN :tables
UNION ALL SELECT 'column ' || made.name || '.' || own.name, own.type || own."notnull" || coalesce(own.dflt_value, '')
FROM sqlite_master AS made, pragma_table_info(made.name) AS own WHERE made.type = 'table' AND made.name IN :tables
"""
# Enabled triggers only, so that a disabled one is missing. NOT NULL belongs to its column.
_POSTGRESQL = """
WITH ours AS (
    SELECT oid, relname, relkind, relrowsecurity, relforcerowsecurity FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relname IN :tables
), found AS (
    SELECT 'table ' || relname AS object, relkind::text || relrowsecurity AS definition FROM ours
    UNION ALL SELECT 'column ' || relname || '.' || attname,
        format_type(atttypid, atttypmod) || attnotnull || coalesce(pg_get_expr(adbin, adrelid), '')
    FROM ours JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    UNION ALL SELECT 'constraint ' || conname || ' on ' || relname, pg_get_constraintdef(pg_constraint.oid)
    FROM ours JOIN pg_constraint ON conrelid = ours.oid AND contype <> 'n'
    UNION ALL SELECT 'index ' || indexrelid::regclass || ' on ' || relname, pg_get_indexdef(indexrelid) || indisvalid
    FROM ours JOIN pg_index ON indrelid = ours.oid
    UNION ALL SELECT 'trigger ' || tgname || ' on ' || relname, pg_get_triggerdef(pg_trigger.oid) || prosrc
    FROM ours JOIN pg_trigger ON tgrelid = ours.oid AND NOT tgisinternal AND tgenabled IN ('O', 'A')
    JOIN pg_proc ON pg_proc.oid = tgfoid
    UNION ALL SELECT 'rule ' || rulename || ' on ' || relname, pg_get_ruledef(pg_rewrite.oid)
    FROM ours JOIN pg_rewrite ON ev_class = ours.oid
    UNION ALL SELECT 'policy ' || polname || ' on ' || relname, coalesce(pg_get_expr(polqual, polrelid), '')
    FROM ours JOIN pg_policy ON polrelid = ours.oid
    UNION ALL SELECT 'row security on ' || relname, relforcerowsecurity::text FROM ours WHERE relrowsecurity
)
SELECT object, replace(definition, quote_ident(current_schema()) || '.', '') FROM found
"""


def present_schema(connection: Connection) -> dict[str, str]:
    """Read the digests of the definitions of the ledger's tables and their objects, by the object's name."""
    query = text(_SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL)
    rows = connection.execute(
        query.bindparams(bindparam("tables", [*Base.metadata.tables, LAST_ROWID], expanding=True))
    )
    return {name: hashlib.sha256(" ".join(definition.split()).encode()).hexdigest()[:32] for name, definition in rows}


def schema_faults(connection: Connection) -> list[str]:
    """Return the missing, changed and added objects, in words; none if the schema is that of the migrations."""
    expected, found = _expected(connection), present_schema(connection)
    missing = [f"the {name} is missing" for name in _missing(expected, found)]
    added = [f"the {name} is not of the ledger" for name in sorted(found.keys() - expected.keys())]
    both = sorted(expected.keys() & found.keys())
    return missing + [f"the {name} was changed" for name in both if found[name] != expected[name]] + added


def require_schema(database: Database, *, to_read: bool = False) -> None:
    """Refuse a database that lacks objects of the migrations, or has other triggers, rules or policies.

    Changed or added columns, indexes and constraints are left to ``verify``: they cannot make a statement silently do
    something else.

    Args:
        to_read: look for missing tables and columns only.

    Raises:
        StartupRefused: the schema differs so.
        Unavailable: the database does not answer.
    """
    with database.read() as connection:
        expected, found = _expected(connection), present_schema(connection)
    missing = [name for name in _missing(expected, found) if not to_read or name.startswith(_READ)]
    acting = [name for name in sorted(found) if name.startswith(_ACTING) and found[name] != expected.get(name)]
    faults = [f"lacks the {_named(missing)}"] if missing else []
    if acting and not to_read:
        faults.append(f"has, not as the ledger has it, the {_named(acting)}")
    if faults:
        raise StartupRefused(
            f"the database {' and '.join(faults)}: somebody else changed it. Find out what happened (python -m service"
            " verify may tell more); make it again as a new database has it, or restore the newest sound copy"
        )


def _named(objects: list[str]) -> str:
    """Return the names of the first objects."""
    more = f" and {len(objects) - _SHOWN} more" if len(objects) > _SHOWN else ""
    return ", the ".join(objects[:_SHOWN]) + more


def _missing(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names of missing objects; of a missing table, only the table."""
    names = sorted(expected.keys() - found.keys())
    tables = [name.removeprefix("table ") for name in names if name.startswith("table ")]
    parts = tuple(f"column {table}." for table in tables), tuple(f" on {table}" for table in tables)
    return [name for name in names if not (name.startswith(parts[0]) or name.endswith(parts[1]))]


def _expected(connection: Connection) -> Mapping[str, str]:
    schemas: dict[str, dict[str, str]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return schemas[connection.dialect.name]
