"""The contract's table of contents: operations in groups, in the order of a first day."""

from typing import NamedTuple


class Group(NamedTuple):
    """A group of operations that belong together.

    Attributes:
        description: the purpose of the group, in one or two sentences.
        operations: their ids, in the order of use.
    """

    description: str
    operations: tuple[str, ...]


GROUPS = {
    "accounts": Group(
        "An account is a protected population with its privacy budget. A first day begins with opening one.",
        ("open_account", "list_accounts", "read_account", "change_account", "reject_change"),
    ),
    "releases": Group(
        "A release is a plan whose cost is charged to its account, or refused where it does not fit. A release can"
        " be reserved first and then committed or voided; others approve large ones.",
        (
            "count_capacity",
            "register_release",
            "list_releases",
            "find_releases",
            "register_batch",
            "read_release",
            "describe_release",
            "list_events",
            "state_accuracy",
            "state_family_accuracy",
            "commit_release",
            "void_release",
            "approve_release",
            "list_proposals",
        ),
    ),
    "noisy counts": Group(
        "Each mechanism of a release is drawn once: true counts in, noisy counts out. Only the noisy counts are kept.",
        (
            "draw_mechanism",
            "list_draws",
            "read_draw",
            "register_and_draw",
            "draw_histogram",
            "tabulate_groups",
            "select_candidate",
        ),
    ),
    "balance and history": Group(
        "The account's spending and its remaining budget, now, over time, and for each period that it counts by.",
        ("read_balance", "read_history", "read_shares", "report_account", "list_periods"),
    ),
    "computations": Group(
        "Costs, conversions, calibration and margins of error before anything is registered. Nothing is stored or"
        " charged, and every key has access.",
        (
            "compose",
            "convert",
            "calibrate_to_margin",
            "calibrate_to_guarantee",
            "calibrate_threshold",
            "compare",
            "allocate",
            "tell_accuracy",
            "draw_curve",
            "plan_safetab",
            "rake",
            "project",
        ),
    ),
    "scenarios": Group(
        "A scenario is what the planner's form states, saved under a name: inputs of a plan, which colleagues can open"
        " and compare. Nothing is charged.",
        ("save_scenario", "list_scenarios", "read_scenario", "replace_scenario", "delete_scenario"),
    ),
    "trust": Group(
        "The account's journal with its signed head, receipts and exports. Others can check the ledger with them,"
        " without relying on the service.",
        (
            "read_journal",
            "read_head",
            "verify_account",
            "read_receipt",
            "download_package",
            "export_account",
            "read_installation",
        ),
    ),
    "keys": Group(
        "Callers and their roles: auditors read; pipelines also register and draw; approvers also approve and"
        " reject; stewards do all of it, and manage.",
        ("read_principal", "create_key", "list_keys", "rotate_key", "revoke_key"),
    ),
    "notifications": Group(
        "Webhooks are told of proposals, approvals, refusals, budgets below a share, and of what befalls the ledger; by"
        " signed requests or by mail.",
        (
            "make_webhook",
            "list_webhooks",
            "read_webhook",
            "change_webhook",
            "delete_webhook",
            "rotate_webhook",
            "test_webhook",
            "list_deliveries",
            "retry_delivery",
        ),
    ),
    "registry": Group(
        "Entries of the public Differential Privacy Deployments Registry, from the ledger and from metadata.",
        ("read_release_entry", "read_account_entry"),
    ),
    "empirical privacy loss": Group(
        "Estimates and certified lower bounds of privacy loss from residuals, and simulated experiments. The answers"
        " are not protected.",
        ("measure_loss", "bound_from_below", "run_experiment"),
    ),
    "jobs": Group(
        "Experiments run in the background: follow them, read their results, end them.",
        ("list_jobs", "read_job", "end_job"),
    ),
    "operations": Group(
        "Probes for the operator of the service. They need no key.",
        ("healthz", "readyz"),
    ),
}
PLACES = {
    operation: (name, place)
    for place, (name, operation) in enumerate(
        (name, operation) for name, group in GROUPS.items() for operation in group.operations
    )
}
