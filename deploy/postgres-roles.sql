-- The role with which the service uses its PostgreSQL database, and no more rights than it needs.
--
-- psql runs this, as the owner of the ledger's tables, after every `python -m service migrate`, which that owner runs too:
--
--   LEDGER_PASSWORD=... psql --no-psqlrc --file=deploy/postgres-roles.sql "$LEDGER"
--
-- Then SERVICE_DATABASE_URL of the servers and of all other commands names the role ledger_application. It cannot take
-- a trigger away, make or change a table, or delete or change what is there for ever. What it may not is refused by
-- PostgreSQL whatever the service does; what it may is bounded further by the tables' triggers.
--
-- It is made where it is not there yet. Its password is set where LEDGER_PASSWORD is; PostgreSQL's log shows that
-- statement where log_statement is `ddl` or `all`. All is done in one transaction, or nothing, and may be repeated while
-- servers run.

\set ON_ERROR_STOP on
\getenv password LEDGER_PASSWORD

BEGIN;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'ledger_application') THEN
        CREATE ROLE ledger_application LOGIN;
    END IF;
    -- Rights that are not of the tables would be a way around those.
    IF (SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls FROM pg_roles
        WHERE rolname = 'ledger_application') THEN
        RAISE EXCEPTION 'expected ledger_application without attributes such as SUPERUSER and CREATEROLE';
    END IF;
    IF EXISTS (SELECT FROM pg_auth_members WHERE member = 'ledger_application'::regrole) THEN
        RAISE EXCEPTION 'expected ledger_application to be a member of no other role';
    END IF;
    IF EXISTS (SELECT FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND deptype = 'o'
               AND refobjid = 'ledger_application'::regrole) THEN
        RAISE EXCEPTION 'expected ledger_application to own nothing';
    END IF;
END
$$;

\if :{?password}
ALTER ROLE ledger_application PASSWORD :'password';
\endif

-- Whatever was granted before is taken back, so that this file is all that there is.
REVOKE CREATE, TEMPORARY ON DATABASE :"DBNAME" FROM PUBLIC, ledger_application;
REVOKE CREATE ON SCHEMA public FROM PUBLIC, ledger_application;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, ledger_application;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, ledger_application;

GRANT CONNECT ON DATABASE :"DBNAME" TO ledger_application;
GRANT USAGE ON SCHEMA public TO ledger_application;
GRANT USAGE ON SEQUENCE accounts_id_seq TO ledger_application;
GRANT SELECT ON alembic_version TO ledger_application;

-- Written by a migration alone: where it says so, servers seal rows that have no seal.
GRANT SELECT ON older_rows TO ledger_application;

-- For ever as it was written.
GRANT SELECT, INSERT ON journal, installation_journal, descriptions, release_tags, tabulations, branches_taken
    TO ledger_application;

-- What is said of it for ever, and what goes on beside that. A lock on a row takes the right to update one column of it:
-- that of `installation` is the moment at which it was made, which nothing rests on.
GRANT SELECT, INSERT, UPDATE (created_at) ON installation TO ledger_application;
GRANT SELECT, INSERT, UPDATE (
    budget, totals, state, head_seq, head_hash, approval_above, next_expiry, releases, partitions_drawn,
    partitions_undeclared, seal, spending_sum
) ON accounts TO ledger_application;
GRANT SELECT, INSERT, UPDATE (state, price, accountant, seal) ON releases TO ledger_application;
GRANT SELECT, INSERT, UPDATE (noisy, noisy_removed_at, seal) ON draws TO ledger_application;
GRANT SELECT, INSERT, UPDATE (drawn, seal) ON partitions_drawn TO ledger_application;
GRANT SELECT, INSERT, UPDATE (token_hash, expires_at, revoked_at, last_used_at, seal) ON api_keys TO ledger_application;
GRANT SELECT, INSERT, UPDATE (seal) ON stored_answers TO ledger_application;
GRANT SELECT, INSERT, UPDATE (state, cost, seal) ON known_costs TO ledger_application;

-- What goes when it is over.
GRANT SELECT, INSERT, UPDATE (price, seal), DELETE ON holds TO ledger_application;
GRANT SELECT, INSERT, DELETE ON unrecorded_groups TO ledger_application;
GRANT SELECT, INSERT, UPDATE (occurrences, reserved), DELETE ON spending TO ledger_application;
GRANT SELECT, INSERT, UPDATE (
    state, permille, result, problem, attempts, worker, leased_until, ended_at, seal
), DELETE ON jobs TO ledger_application;

COMMIT;
