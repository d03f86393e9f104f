"""The OpenAPI document: FastAPI's, with the answers that all operations share."""

import hashlib
import json
import re
import threading
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from service.api.arrow import streams
from service.api.http import csv_answers
from service.api.http.expected_head import HEADER
from service.api.http.problems import KINDS, MEDIA_TYPE
from service.api.openapi import examples
from service.api.openapi.contents import GROUPS, PLACES
from service.api.publication.noisy_tables import PARQUET
from service.api.schemas.guarantees import DELTA_SAID

DESCRIPTION = """\
Keeps a durable ledger of the privacy loss of differentially private releases, per population, in pure, zCDP, RDP
and (epsilon, delta) terms; calibrates noise to margins of error and draws exact noisy counts.

Losses are in nats. Every guarantee is an upper bound. Exact numbers may be JSON numbers, decimal strings or
fraction strings. Errors are RFC 9457 problems.
"""

_OVERRUN = {
    "account": {"type": ["string", "null"]},
    "definition": {"type": ["string", "null"]},
    "cap": {"type": ["string", "null"]},
    "requested": {"type": ["number", "null"]},
    "remaining": {"type": ["number", "null"]},
}
_PROBLEM = {
    "type": "object",
    "description": "An RFC 9457 problem; type is /problems/<code>, a page that explains it.",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "enum": [f"/problems/{code}" for code in KINDS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
        **_OVERRUN,
        "failures": {"type": "array", "items": {"type": "object", "properties": _OVERRUN}},
        "noise_multiplier_that_fits": {"type": ["number", "null"]},
        "draw": {"type": "string"},
        "missing": {"type": "array", "items": {"type": "string"}},
    },
}


_IF_LEDGER_INCLUDES = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "seq:hash of a journal entry that the client has seen; 412 where the journal does not contain it.",
    "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,14}:[0-9a-f]{64}$"},
}

_CONFLICTS = {  # beside those of accounts
    ("/v1/jobs/{job}", "delete"),
    ("/v1/keys/{key}/rotate", "post"),
    ("/v1/scenarios", "post"),
    ("/v1/scenarios/{scenario}", "put"),
    ("/v1/webhooks", "post"),
    ("/v1/webhooks/{webhook}/test", "post"),
    ("/v1/webhooks/{webhook}/deliveries/{delivery}/retry", "post"),
}
# Further codes of a status, where an example shows them.
_ALSO = {
    "budget_exceeded": {
        "register_release",
        "register_batch",
        "approve_release",
        "register_and_draw",
        "draw_histogram",
    },
    "already_drawn": {"draw_mechanism"},
}
_STREAM = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "An Arrow IPC stream: binary, so no example is shown. A stream that is sent has at most 100"
        " record batches, and one more for every 1,000 rows; at most 20,000 messages with dictionaries.",
    }
}
_TABLE: dict[str, Any] = {
    "schema": {
        "type": "string",
        "description": "A table (RFC 4180, UTF-8) with a line of names: one column `count`, the others labels, which"
        " are spelt as partitions are. Each combination of labels stands once.",
    },
    "example": "county,sex,count\r\n001,female,54571\r\n001,male,53010\r\n",
}
_PARQUET = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "To a request with a table: the same table as Parquet, with labels as strings. Binary, so no"
        " example is shown.",
    }
}
_NOISY_TABLE = "county,sex,noisy,moe,confidence\r\n001,female,54569,6,0.95\r\n001,male,53013,6,0.95\r\n"
_IDENTITY = {
    "X-Release": {"description": "The release's id, of an Arrow stream or a table.", "schema": {"type": "string"}},
    "X-Draw": {"description": "The draw's id, of an Arrow stream or a table.", "schema": {"type": "string"}},
    "X-Ledger-Head": {
        "description": "seq:hash of the draw's journal entry, of an Arrow stream or a table.",
        "schema": {"type": "string"},
    },
    "X-Granularity": {
        "description": "The granularity of an Arrow stream's counts, where it is not 1.",
        "schema": {"type": "string"},
    },
}
_CHARGED = {
    "X-Charge": {
        "description": "Only in answers to with_charge=true, of any form: the charge of the release as JSON, as in the"
        " answers about releases. Its share is that of the present budget, so that a replay may have another one.",
        "schema": {"type": "string", "contentMediaType": "application/json"},
    }
}
_QUERY: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"type": "string"}, "The release's name."),
    "mechanism": (
        {"type": "string"},
        "As in JSON: the mechanism as JSON text; for a registered release, the mechanism's name or path.",
    ),
    "tags": ({"type": "array", "items": {"type": "string"}}, "The release's tags; the parameter is repeated for each."),
    "delta": ({"type": "string"}, DELTA_SAID),
    "partition": ({"type": "string"}, "The name of the disjoint subset of the input that was counted."),
    "repetition": ({"type": "string"}, "The number of the repetition, where the mechanism is repeated."),
    "granularity": (
        {"type": "string"},
        "The mechanism's granularity, where it has one: the column counts units of it.",
    ),
    "level": ({"type": "string"}, "The level's name."),
    "thresholds": ({"type": "string"}, "As JSON text."),
    "age_bins": ({"type": "string"}, "As JSON text."),
}


def bulk_body(example: dict[str, Any], query: dict[str, Any], *, table: bool = False) -> dict[str, Any]:
    """Return the request body of an operation that takes JSON or an Arrow stream, for ``openapi_extra``.

    With ``table``, it takes a table too.

    JSON cannot contain an example of a stream; the guide has one in code. Examples of query parameters are in their
    schemas, since pages fill in examples of parameters, and a JSON body is refused together with these parameters.
    """
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": _QUERY[name][0] | {"examples": [value]},
            "description": f"With an Arrow stream{' or a table' if table else ''} only. {_QUERY[name][1]}",
        }
        for name, value in query.items()
    ]
    content: dict[str, dict[str, Any]] = {"application/json": {"example": example}, streams.MEDIA_TYPE: _STREAM}
    if table:
        content |= {csv_answers.MEDIA_TYPE: _TABLE}
    return {"parameters": parameters, "requestBody": {"content": content}}


def bulk_answer(status: int, *, table: bool = False, charged: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return an operation's answer that may be an Arrow stream, or with ``table`` a table too, for ``responses``.

    A table is answered as Parquet where the request asks for it. With ``charged`` the draw charges a release, whose
    charge the request may ask for.
    """
    content: dict[str, dict[str, Any]] = {streams.MEDIA_TYPE: _STREAM}
    if table:
        content |= {csv_answers.MEDIA_TYPE: csv_answers.ANSWER[csv_answers.MEDIA_TYPE] | {"example": _NOISY_TABLE}}
        content |= {PARQUET: _PARQUET}
    return {status: {"content": content, "headers": _IDENTITY | (_CHARGED if charged else {})}}


def draw_answer() -> dict[int | str, dict[str, Any]]:
    """Return the answer of an operation that reads a draw, which may also be a table, for ``responses``."""
    return bulk_answer(200, table=True)


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the contract as a document."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=DESCRIPTION,
            routes=app.routes,
            separate_input_output_schemas=False,  # one name for each model, for generators of clients
        )
        components = schema.setdefault("components", {})
        for name in ("HTTPValidationError", "ValidationError"):
            components.get("schemas", {}).pop(name, None)
        components.setdefault("schemas", {})["Problem"] = _PROBLEM
        components["securitySchemes"] = {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key, or where an OpenID Connect issuer is configured one of its tokens (JWT).",
            }
        }
        components["examples"] = {code: {"value": value} for code, value in examples.PROBLEMS.items()}
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                _complete(path, method, operation)
        schema["paths"] = _in_order(schema["paths"])
        schema["tags"] = [{"name": name, "description": group.description} for name, group in GROUPS.items()]
        app.openapi_schema = schema
    return app.openapi_schema


def _in_order(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the paths and their methods in the order of the groups, which the pages show."""

    def place(operation: dict[str, Any]) -> int:
        return PLACES[operation["operationId"]][1]

    ordered = {path: dict(sorted(methods.items(), key=lambda item: place(item[1]))) for path, methods in paths.items()}
    return dict(sorted(ordered.items(), key=lambda item: min(map(place, item[1].values()))))


def install(app: FastAPI) -> None:
    """Serve the contract at its address, rendered once: rendering for each request would delay all others."""
    writing = threading.Lock()
    written: list[tuple[bytes, str]] = []

    def write() -> tuple[bytes, str]:
        with writing:
            if not written:
                text = json.dumps(describe(app), ensure_ascii=False, separators=(",", ":")).encode()
                written.append((text, f'"{hashlib.sha256(text).hexdigest()[:32]}"'))
        return written[0]

    async def read(request: Request) -> Response:
        text, tag = written[0] if written else await to_thread.run_sync(write)
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return Response(text, media_type="application/json", headers={"ETag": tag})

    app.add_route("/openapi.json", read, include_in_schema=False)


def _problems_of(path: str, method: str, operation: dict[str, Any]) -> dict[int, str]:
    """Return the codes of an operation's problems by status."""
    statuses = {503: "unavailable"}
    if path.startswith("/v1"):
        statuses |= {401: "unauthenticated", 403: "forbidden", 422: "validation", 429: "too_many_requests"}
        if any(answer.get("content") for answer in operation["responses"].values()):
            statuses[406] = "not_acceptable"
        if "{" in path:
            statuses[404] = "not_found"
        if "{account}" in path:
            statuses[412] = "ledger_rolled_back"
        if "requestBody" in operation:
            statuses |= {408: "too_slow", 413: "too_large", 415: "unsupported_media_type"}
        if (path.startswith("/v1/accounts") and method in ("post", "patch")) or (path, method) in _CONFLICTS:
            statuses[409] = "conflict"
        if path.endswith("/registry-entry"):
            statuses[409] = "incomplete"
    return statuses


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    """Complete an operation with a short name and with the problems that follow from its parameters."""
    name = operation["operationId"].removesuffix(re.sub(r"\W", "_", f"{path}_{method}"))
    operation["operationId"], operation["tags"] = name, [PLACES[name][0]]
    summary, _, description = operation.get("description", "").partition("\n\n")
    if description:  # docstrings: a sentence, then the rest
        operation["summary"], operation["description"] = summary.rstrip("."), description
    answers = operation["responses"]
    if path.startswith("/v1"):
        operation["security"] = [{"key": []}]
    if "{account}" in path:
        operation.setdefault("parameters", []).append(_IF_LEDGER_INCLUDES)
    for status, answer in answers.items():
        recorded = examples.ANSWERS.get(name, {}).get(status, {})
        for media_type in recorded.keys() & answer.get("content", {}).keys():
            answer["content"][media_type]["example"] = recorded[media_type]
    repeatable = any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", []))
    also = {code for code, operations in _ALSO.items() if name in operations}
    also |= {"idempotency_conflict"} if repeatable else set()
    for status, code in sorted(_problems_of(path, method, operation).items()):
        codes = [code, *sorted(other for other in also if KINDS[other].status == status)]
        shown = {one: {"$ref": f"#/components/examples/{one}"} for one in codes if one in examples.PROBLEMS}
        answers[str(status)] = {
            "description": KINDS[code].title,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": shown}},
        }
    if repeatable:
        first = next(answers[status] for status in ("201", "202", "200", "204") if status in answers)
        first.setdefault("headers", {})["Idempotent-Replay"] = {
            "description": "true for a repeated answer to the same Idempotency-Key.",
            "schema": {"type": "string", "enum": ["true"]},
        }
