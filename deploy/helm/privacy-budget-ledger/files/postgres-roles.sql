-- The role with which the service uses its PostgreSQL database. It has only the rights that the service needs.
--
-- Run this script with psql, as the owner of the ledger's tables, after every `python -m service migrate` of that owner:
--
--   LEDGER_PASSWORD=... psql --no-psqlrc --file=deploy/postgres-roles.sql "$LEDGER"
--
-- Then let SERVICE_DATABASE_URL of the servers and of all other commands name the role ledger_application. This role
-- cannot remove a trigger, make or change a table, or delete or change permanent rows. PostgreSQL refuses everything
-- for which the role has no right, whatever the service does. Triggers of the tables limit the rest further.
--
-- The script makes the role if it does not exist. It sets the role's password if LEDGER_PASSWORD is not empty; PostgreSQL's
-- log shows that statement if log_statement is `ddl` or `all`. Everything is done in one transaction. The script may be
-- run again while servers run.

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
    -- Every role may make large objects, which give no right to anything else.
    IF EXISTS (SELECT FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND deptype = 'o'
               AND refobjid = 'ledger_application'::regrole AND classid <> 'pg_largeobject'::regclass) THEN
        RAISE EXCEPTION 'expected ledger_application to own nothing';
    END IF;
END
$$;

-- An empty variable counts as unset: an empty password would lock the servers out.
\if :{?password}
SELECT :'password' <> '' AS has_password \gset
\else
\set has_password false
\endif
\if :has_password
ALTER ROLE ledger_application PASSWORD :'password';
\endif

-- All earlier grants are revoked, so that this file lists all rights.
REVOKE CREATE, TEMPORARY ON DATABASE :"DBNAME" FROM PUBLIC, ledger_application;
REVOKE CREATE ON SCHEMA public FROM PUBLIC, ledger_application;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, ledger_application;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, ledger_application;

GRANT CONNECT ON DATABASE :"DBNAME" TO ledger_application;
GRANT USAGE ON SCHEMA public TO ledger_application;
GRANT USAGE ON SEQUENCE accounts_id_seq TO ledger_application;
GRANT SELECT ON alembic_version TO ledger_application;

-- Only a migration writes this table. It names the tables in which servers seal rows without a seal.
GRANT SELECT ON older_rows TO ledger_application;

-- Rows that never change.
GRANT SELECT, INSERT ON journal, installation_journal, descriptions, release_tags, tabulations, branches_taken
    TO ledger_application;

-- Rows that stay, with columns that change. Locking a row needs the right to update one of its columns: for `installation`
-- this is the time at which the row was made, on which nothing depends.
GRANT SELECT, INSERT, UPDATE (created_at) ON installation TO ledger_application;
GRANT SELECT, INSERT, UPDATE (
    budget, totals, state, head_seq, head_hash, approval_above, next_expiry, releases, partitions_drawn,
    partitions_undeclared, seal, spending_sum, caps, cap_totals, period_state, allotted, approvers
) ON accounts TO ledger_application;
GRANT SELECT, INSERT, UPDATE (state, price, accountant, seal) ON releases TO ledger_application;
GRANT SELECT, INSERT, UPDATE (noisy, noisy_removed_at, seal) ON draws TO ledger_application;
GRANT SELECT, INSERT, UPDATE (drawn, seal) ON partitions_drawn TO ledger_application;
GRANT SELECT, INSERT, UPDATE (committed, held, releases, seq, seal) ON window_totals TO ledger_application;
GRANT SELECT, INSERT, UPDATE (plan, price, caps, seq, seal) ON allotments TO ledger_application;
GRANT SELECT, INSERT, UPDATE (token_hash, expires_at, revoked_at, last_used_at, seal) ON api_keys TO ledger_application;
GRANT SELECT, INSERT, UPDATE (seal) ON stored_answers TO ledger_application;
GRANT SELECT, INSERT, UPDATE (state, cost, seal) ON known_costs TO ledger_application;

-- Rows that are deleted when they are no longer needed.
GRANT SELECT, INSERT, UPDATE (price, seal, caps), DELETE ON holds TO ledger_application;
GRANT SELECT, INSERT, UPDATE (occurrences, reserved), DELETE ON spending TO ledger_application;
GRANT SELECT, INSERT, UPDATE (
    state, permille, result, problem, attempts, worker, leased_until, ended_at, seal
), DELETE ON jobs TO ledger_application;
GRANT SELECT, INSERT, UPDATE (name, account, kind, mechanism, inputs, changed_at), DELETE ON scenarios
    TO ledger_application;
GRANT SELECT, INSERT, UPDATE (
    name, url, mail, events, accounts, below, active, generation, rotated_at, seal
), DELETE ON webhooks TO ledger_application;
GRANT SELECT, INSERT, UPDATE (state, tries, due_at), DELETE ON deliveries TO ledger_application;
GRANT SELECT, INSERT, DELETE ON delivery_tries, budgets_below TO ledger_application;
GRANT SELECT, INSERT, UPDATE (seq, hash), DELETE ON followed_journals TO ledger_application;

COMMIT;
