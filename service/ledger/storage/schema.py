"""Comparison of the database's schema with that which the migrations create in an empty database.

Triggers help to keep entries for ever, and the owner of the tables can remove one without a trace in any row. The
schema that the migrations create is committed beside this module, as a digest for each object. The declarations
(``tables``) cannot serve for this, because a database words them in its own way, and a PostgreSQL server may not be
able to create a second schema to compare with. ``make schema`` writes the file, and a test compares it with fresh
databases of both kinds.
"""

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, text
from sqlalchemy.exc import ProgrammingError

from service.errors import OtherSchema, StartupRefused
from service.ledger.storage.connections.engines import schema_of, set_search_path
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Base

EXPECTED = Path(__file__).with_suffix(".json")

# Objects that the ledger's statements need.
_READ = ("table ", "column ")
# Objects that can make a reading statement return something else than the tables hold. The expressions of indexes,
# statistics and constraints are among them: planning a statement runs their functions within the session. So does the
# key of a partitioned table of which one of the ledger's is a partition. Other tables that refer to the ledger's belong
# here too: their rows can be made to go with the ledger's rows, and their triggers run then.
_LYING = (
    "view ",
    "child ",
    "parent ",
    "type ",
    "function ",
    "operator ",
    "index ",
    "statistics ",
    "constraint ",
    "reference ",
    "object ",
)
_SHOWN = 5
_PARSED = "parsed_schema"  # the key of the number of the schema that a connection read and that was compared
_TABLES = [*Base.metadata.tables, "alembic_version"]

# SQLite compares names and types without case and up to a NUL character, and keeps a trigger's table as the trigger's
# text spells it.
#
# Some objects could hide others from the check, so they are looked for first, by a statement that they cannot reach.
# SQLite takes a table-valued function for the table of its name, if there is one, and a virtual table can take the
# function's arguments. And whoever writes the schema's own table can give it an index that lacks rows.
_HIDING_SQLITE = """
SELECT CASE WHEN instr(type || name || tbl_name || coalesce(sql, ''), char(0)) THEN 'object with a NUL character'
    ELSE 'object ' || name END AS object
FROM sqlite_master NOT INDEXED WHERE object = 'object with a NUL character' OR lower(tbl_name) = 'sqlite_master'
OR lower(type) <> 'index' AND (lower(name) GLOB 'json_*' OR lower(name) GLOB 'jsonb_*' OR lower(name) GLOB 'pragma_*')
"""
_SQLITE = """
SELECT CASE lower(type) WHEN 'table' THEN 'table ' || name
    ELSE lower(type) || ' ' || name || ' on ' || lower(tbl_name) END, sql
FROM sqlite_master WHERE sql IS NOT NULL AND lower(tbl_name) IN :tables
UNION ALL SELECT 'column ' || made.name || '.' || own.name, own.type || own."notnull" || coalesce(own.dflt_value, '')
FROM sqlite_master AS made, pragma_table_info(made.name) AS own
WHERE lower(made.type) = 'table' AND made.name IN :tables
UNION ALL SELECT DISTINCT 'reference of ' || made.name || ' to ' || lower(own."table"), ''
FROM sqlite_master AS made, pragma_foreign_key_list(made.name) AS own
WHERE lower(made.type) = 'table' AND lower(made.name) NOT IN :tables AND lower(own."table") IN :tables
"""
# Enabled triggers only, so that a disabled one is missing. NOT NULL belongs to its column.
#
# With pg_catalog alone in the search path, PostgreSQL writes all other names in definitions with their schema. The
# ledger's is replaced by one that no schema can have without quotes, as an installation may name its schema. So
# length(x) and the owner's public.length(x) stay different. PostgreSQL does not write conversions that it makes by
# itself, so a definition ends with what it depends on. PostgreSQL records no dependence on its own functions and types.
#
# PostgreSQL prefers the function or operator whose types fit best, in whichever schema of the search path it is: there
# is =(text, text) for all texts, but another =(varchar, varchar) in the ledger's schema would be taken for columns
# that are varchar. One of exactly the types of PostgreSQL's own comes after that. PostgreSQL makes its own types into
# domains, and into types with an implicit cast, without being told, so these count as its own.
_POSTGRESQL = """
WITH home AS (
    SELECT oid, quote_ident(nspname) || '.' AS prefix FROM pg_namespace WHERE nspname = :schema
), taken AS (
    SELECT oid FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace OR typtype = 'd'
    UNION SELECT casttarget FROM pg_cast WHERE castcontext = 'i'
), ours AS (
    SELECT pg_class.* FROM pg_class JOIN home ON relnamespace = home.oid WHERE relname IN :tables
), parts AS (
    SELECT 'column ' || relname || '.' || attname AS object,
        format_type(atttypid, atttypmod) || attnotnull || coalesce(pg_get_expr(adbin, adrelid), '') AS definition,
        'pg_attrdef'::regclass::oid AS class, pg_attrdef.oid AS id
    FROM ours JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    UNION ALL SELECT 'constraint ' || conname || ' on ' || relname, pg_get_constraintdef(pg_constraint.oid),
        'pg_constraint'::regclass, pg_constraint.oid
    FROM ours JOIN pg_constraint ON conrelid = ours.oid AND (contype <> 'n' OR NOT convalidated)
    UNION ALL SELECT 'index ' || named.relname || ' on ' || ours.relname, pg_get_indexdef(indexrelid) || indisvalid,
        'pg_class'::regclass, indexrelid
    FROM ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class AS named ON named.oid = indexrelid
    UNION ALL SELECT 'trigger ' || tgname || ' on ' || relname,
        pg_get_triggerdef(pg_trigger.oid) || pg_get_functiondef(tgfoid), 'pg_trigger'::regclass, pg_trigger.oid
    FROM ours JOIN pg_trigger ON tgrelid = ours.oid AND NOT tgisinternal AND tgenabled IN ('O', 'A')
), found AS (
    SELECT object, definition || coalesce((
        SELECT string_agg(identity, ' ' ORDER BY identity COLLATE "C")
        FROM pg_depend, pg_identify_object(refclassid, refobjid, 0) WHERE classid = class AND objid = id
        AND refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_opclass'::regclass,
            'pg_opfamily'::regclass, 'pg_type'::regclass, 'pg_cast'::regclass, 'pg_collation'::regclass)
    ), '') AS definition FROM parts
    UNION ALL SELECT CASE relkind WHEN 'r' THEN 'table ' ELSE 'view ' END || relname,
        relkind::text || relrowsecurity || CASE relpersistence WHEN 'p' THEN '' ELSE ' not permanent' END
    FROM ours
    UNION ALL SELECT 'type of ' || relname || '.' || attname, format_type(atttypid, atttypmod) || attcollation
    FROM ours JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
    JOIN pg_type ON pg_type.oid = atttypid
    WHERE typnamespace <> 'pg_catalog'::regnamespace OR attcollation <> typcollation
    OR attgenerated <> '' OR attidentity <> ''
    UNION ALL SELECT 'type of ' || relname, reloftype::regtype::text FROM ours WHERE reloftype <> 0
    UNION ALL SELECT DISTINCT 'reference of ' || conrelid::regclass || ' to ' || relname, ''
    FROM ours JOIN pg_constraint ON confrelid = ours.oid WHERE conrelid NOT IN (SELECT oid FROM ours)
    UNION ALL SELECT 'sequence ' || own.relname || ' on ' || ours.relname,
        concat_ws(' ', seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcycle)
    FROM ours JOIN pg_depend ON refobjid = ours.oid AND refclassid = 'pg_class'::regclass
    AND classid = 'pg_class'::regclass AND deptype = 'a'
    JOIN pg_sequence ON seqrelid = objid JOIN pg_class AS own ON own.oid = seqrelid
    UNION ALL SELECT 'statistics ' || stxname || ' on ' || relname, ''
    FROM ours JOIN pg_statistic_ext ON stxrelid = ours.oid
    UNION ALL SELECT 'trigger ' || tgname || ' on ' || relname || ' for replicas', ''
    FROM ours JOIN pg_trigger ON tgrelid = ours.oid AND tgenabled = 'R'
    UNION ALL SELECT 'setting session_replication_role', ''
    WHERE current_setting('session_replication_role') <> 'origin'
    UNION ALL SELECT 'rule ' || rulename || ' on ' || relname, pg_get_ruledef(pg_rewrite.oid)
    FROM ours JOIN pg_rewrite ON ev_class = ours.oid
    UNION ALL SELECT 'policy ' || polname || ' on ' || relname, coalesce(pg_get_expr(polqual, polrelid), '')
    FROM ours JOIN pg_policy ON polrelid = ours.oid
    UNION ALL SELECT 'row security on ' || relname, relforcerowsecurity::text FROM ours WHERE relrowsecurity
    UNION ALL SELECT 'child ' || inhrelid::regclass || ' of ' || relname, ''
    FROM ours JOIN pg_inherits ON inhparent = ours.oid
    UNION ALL SELECT 'parent ' || inhparent::regclass || ' of ' || relname, ''
    FROM ours JOIN pg_inherits ON inhrelid = ours.oid
    UNION ALL SELECT 'function ' || own.oid::regprocedure, own.prosrc
    FROM home JOIN pg_proc AS own ON own.pronamespace = home.oid
    WHERE own.proname IN (SELECT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace)
    AND EXISTS (SELECT FROM unnest(own.proargtypes) AS argument JOIN taken ON taken.oid = argument)
    AND NOT EXISTS (
        SELECT FROM pg_proc AS other WHERE other.pronamespace = 'pg_catalog'::regnamespace
        AND (other.proname, other.proargtypes, other.provariadic, other.pronargdefaults)
            = (own.proname, own.proargtypes, own.provariadic, own.pronargdefaults)
    )
    UNION ALL SELECT 'operator ' || own.oid::regoperator, own.oprcode::text
    FROM home JOIN pg_operator AS own ON own.oprnamespace = home.oid
    WHERE own.oprname IN ('=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '||', '->', '->>', '~~')
    AND (own.oprleft IN (SELECT oid FROM taken) OR own.oprright IN (SELECT oid FROM taken))
    AND NOT EXISTS (
        SELECT FROM pg_operator AS other WHERE other.oprnamespace = 'pg_catalog'::regnamespace
        AND (other.oprname, other.oprleft, other.oprright) = (own.oprname, own.oprleft, own.oprright)
    )
)
SELECT object, replace(definition, prefix, '@.') FROM found, home
"""
# Indexes that run nothing but PostgreSQL's own comparisons of columns.
_PLAIN_SQLITE = """
SELECT 'index ' || own.name || ' on ' || made.name
FROM sqlite_master AS made, pragma_index_list(made.name) AS own
WHERE lower(made.type) = 'table' AND made.name IN :tables AND own."unique" = 0 AND own.partial = 0
AND NOT EXISTS (SELECT 1 FROM pragma_index_xinfo(own.name) WHERE cid = -2)
"""
_PLAIN_POSTGRESQL = """
SELECT 'index ' || named.relname || ' on ' || ours.relname
FROM pg_class AS ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class AS named ON named.oid = indexrelid
WHERE ours.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = :schema) AND ours.relname IN :tables
AND indpred IS NULL AND indexprs IS NULL AND NOT indisunique AND NOT indisexclusion
AND named.relam IN (SELECT oid FROM pg_am WHERE amname IN ('btree', 'hash', 'brin'))
AND NOT EXISTS (
    SELECT FROM unnest(indclass) AS class JOIN pg_opclass ON pg_opclass.oid = class
    WHERE opcnamespace <> 'pg_catalog'::regnamespace
)
"""
_ROLES_PATH = "SELECT pg_catalog.array_to_json(pg_catalog.current_schemas(false))"
_MAY_USE = "SELECT pg_catalog.has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = :schema"
_ELSEWHERE = """
SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname IN :schemas AND relname IN :tables LIMIT 1
"""


def require_one_place(connection: Connection) -> None:
    """Refuse a PostgreSQL database whose role would find tables of the ledger's names in another schema.

    They may be the ledger's tables, of an installation whose operator set the role's search path and not the URL.

    Raises:
        StartupRefused: the role finds such tables before those in the schema that the URL names, or that schema does
            not exist or is closed to the role.
    """
    if connection.dialect.name == "sqlite":
        return
    schema = schema_of(connection)
    may_use = connection.execute(text(_MAY_USE).bindparams(schema=schema)).scalar()
    if not may_use:
        reason = "does not exist in the database" if may_use is None else "may not be used by this role"
        raise StartupRefused(f"the ledger's schema, {schema}, {reason}; CREATE SCHEMA or GRANT USAGE changes that")
    connection.exec_driver_sql("SET LOCAL search_path TO DEFAULT")
    before: list[str] = connection.exec_driver_sql(_ROLES_PATH).scalar_one()
    before = before[: before.index(schema)] if schema in before else before
    set_search_path(connection, catalog_only=bool(before))
    if not before:
        return
    elsewhere = text(_ELSEWHERE).bindparams(
        bindparam("schemas", before, expanding=True), bindparam("tables", _TABLES, expanding=True)
    )
    found = connection.execute(elsewhere).scalar()
    set_search_path(connection, catalog_only=False)
    if found is not None:
        raise StartupRefused(
            f"the ledger's tables are expected in the schema {schema}, but the role's search_path names the schema"
            f" {found} before it, which has tables of these names. If the ledger is in {found}, name that schema in"
            " SERVICE_DATABASE_URL (?options=-csearch_path%3D and the schema); otherwise find out why the tables exist"
        )


def present_schema(connection: Connection) -> dict[str, str]:
    """Read the digests of the definitions of the ledger's tables and their objects, by the object's name."""
    rows = _read_catalog(connection, _SQLITE, _POSTGRESQL)
    return {name: _digest(definition) for name, definition in rows}


def _digest(definition: str) -> str:
    """Return the digest of a definition, with one space for any white space.

    Only ASCII's counts. Both databases take other white space for a part of a name.
    """
    return hashlib.sha256(b" ".join(definition.encode().split())).hexdigest()[:32]


def _compared(connection: Connection) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the expected and the present objects; where some could hide others from the check, only these."""
    if connection.dialect.name == "sqlite":
        hiding = connection.execute(text(_HIDING_SQLITE)).scalars().all()
        if hiding:
            return {}, dict.fromkeys(hiding, "")
    return _expected(connection.dialect.name), present_schema(connection)


def _read_catalog(connection: Connection, sqlite: str, postgresql: str) -> Sequence[Any]:
    tables: BindParameter[list[str]] = bindparam("tables", _TABLES, expanding=True)
    if connection.dialect.name == "sqlite":
        return connection.execute(text(sqlite).bindparams(tables)).all()
    set_search_path(connection, catalog_only=True)
    rows = connection.execute(text(postgresql).bindparams(tables, schema=schema_of(connection))).all()
    set_search_path(connection, catalog_only=False)
    return rows


def schema_faults(connection: Connection) -> list[str]:
    """Return the missing, changed and added objects, in words; none if the schema is that of the migrations."""
    expected, found = _compared(connection)
    missing = [f"the {name} is missing" for name in _missing(expected, found)]
    added = [f"the {name} does not belong to the ledger" for name in sorted(found.keys() - expected.keys())]
    both = sorted(expected.keys() & found.keys())
    return missing + [f"the {name} was changed" for name in both if found[name] != expected[name]] + added


def unexpected(connection: Connection, *, to_read: bool = False) -> str | None:
    """Return in words the objects that are missing, or that are not as the migrations make them.

    Operators may add indexes: plain ones, on columns, without a predicate, not unique, with PostgreSQL's own operator
    classes. Any other difference counts. A default, a constraint or an index's predicate runs functions of the tables'
    owner within the service's sessions.

    Args:
        to_read: look only for missing tables and columns, and for objects that can falsify a reading statement.
            ``verify`` reports the rest.

    Returns:
        None if there are none.
    """
    expected, found = _compared(connection)
    missing = [name for name in _missing(expected, found) if not to_read or name.startswith(_READ)]
    acting = [name for name in sorted(found) if found[name] != expected.get(name)]
    if to_read:
        acting = [name for name in acting if name.startswith(_LYING)]
    if any(name.startswith("index ") and name not in expected for name in acting):
        plain = {name for (name,) in _read_catalog(connection, _PLAIN_SQLITE, _PLAIN_POSTGRESQL)} - expected.keys()
        acting = [name for name in acting if name not in plain]
    faults = [f"lacks the {_named(missing)}"] if missing else []
    if acting:
        faults.append(f"has, added or changed, the {_named(acting)}")
    return f"the database {' and '.join(faults)}: it was changed outside the service" if faults else None


def require_schema(database: Database, *, to_read: bool = False) -> None:
    """Refuse a database with another schema.

    Args:
        to_read: as in ``unexpected``.

    Raises:
        StartupRefused: the schema differs.
        Unavailable: the database does not answer.
    """
    with database.read() as connection:
        _require(connection, to_read=to_read)


def hold_schema(connection: Connection, *, to_read: bool = False) -> None:
    """Refuse a database with another schema, and keep its tables so until the transaction ends, which this begins.

    On PostgreSQL, a function, an operator, a trigger, an index or a table that inherits can be added all the same.

    Args:
        to_read: as in ``unexpected``.

    Raises:
        StartupRefused: the schema differs.
    """
    if connection.dialect.name == "postgresql":
        schema, quoted = schema_of(connection), connection.dialect.identifier_preparer.quote
        tables = ", ".join(f"{quoted(schema)}.{quoted(table)}" for table in _TABLES)
        try:
            connection.exec_driver_sql(f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
        except ProgrammingError:
            raise StartupRefused("a table of the ledger is missing, or this role may not read it") from None
    else:
        _parse_again(connection)
    _require(connection, to_read=to_read)


def require_parsed_schema(connection: Connection) -> None:
    """Refuse another schema of an SQLite file in the transaction in which a connection reads it, which this begins.

    A connection keeps the schema that it read until a number in the file changes. Whoever writes the file can change
    the schema without the number, and put an earlier number back: a trigger that was there when a connection read it
    would stay in force, and no later look would find it. So this comes before any statement that may read the schema,
    and the number of the schema that a connection compared is forgotten when it reads another one.

    Raises:
        OtherSchema: the schema differs.
    """
    raw = connection.connection.driver_connection
    if not isinstance(raw, sqlite3.Connection):
        return
    (version,) = raw.execute("PRAGMA schema_version").fetchone()
    if connection.info.get(_PARSED) == version:
        return
    _parse_again(connection)
    fault = unexpected(connection)
    if fault is not None:
        raise OtherSchema(fault)
    connection.info[_PARSED] = version


def _parse_again(connection: Connection) -> None:
    """Have a connection to an SQLite file read its schema in the present transaction, which is not compared yet."""
    connection.info.pop(_PARSED, None)
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")


def _require(connection: Connection, *, to_read: bool) -> None:
    fault = unexpected(connection, to_read=to_read)
    if fault is not None:
        raise StartupRefused(
            f"{fault}. Find out what happened (python -m service verify may say more); make the objects as they are in"
            " a new database, or restore the newest sound copy"
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


@cache
def _expected(kind: str) -> Mapping[str, str]:
    schemas: dict[str, dict[str, str]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return schemas[kind]
