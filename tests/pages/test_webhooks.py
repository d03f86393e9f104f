"""The pages of webhooks: made, shown once, changed, tested, paused, rotated and deleted."""

import re
from typing import Any

from sqlalchemy import text

from tests.api.calls import Client, json_of, make_key
from tests.pages.visits import hidden, sign_in, submit

_FIELDS = {"name": "approvals", "url": "https://hooks.agency.example/", "events": ["release.proposed", "budget.below"]}


def _listed(api: Client) -> Any:
    return json_of(api.get("/v1/webhooks"))["items"]


def _make(steward: Client, **fields: Any) -> Any:
    return submit(steward, "/webhooks", "/webhooks", **_FIELDS | {"below": "0.2"} | fields)


def test_a_webhook_is_made_and_its_secret_shown_once(api: Client, steward: Client) -> None:
    shown = _make(steward, accounts="persons, households").text
    (made,) = _listed(api)
    assert (made["events"], made["below"]) == (["release.proposed", "budget.below"], "0.2")
    assert (made["accounts"], made["mail"]) == (["persons", "households"], None)
    assert "whsec_" in shown
    page = steward.get(f"/webhooks/{made['id']}").text
    assert "whsec_" not in page
    assert "https://hooks.agency.example/" in page
    assert "approvals" in steward.get("/webhooks").text
    assert made["id"] in steward.get("/webhooks.csv").text


def test_a_refusal_is_shown_at_its_field(api: Client, steward: Client) -> None:
    answer = _make(steward, url="http://hooks.agency.example/", below="")
    assert answer.status_code == 422
    assert 'id="url-fault"' in answer.text
    assert 'value="http://hooks.agency.example/"' in answer.text
    assert 'value="budget.below" checked' in answer.text
    answer = _make(steward, events=[])
    assert 'id="events-fault"' in answer.text
    assert _listed(api) == []


def test_the_form_offers_mail_where_there_is_a_server(steward: Client) -> None:
    assert 'name="mail"' not in steward.get("/webhooks").text
    app: Any = steward.app  # type: ignore[attr-defined]
    app.state.settings = app.state.settings.model_copy(update={"smtp_host": "mail.agency.example"})
    assert 'name="mail"' in steward.get("/webhooks").text
    shown = _make(steward, url="", mail="ann@agency.example, bob@agency.example").text
    assert "ann@agency.example, bob@agency.example" in shown
    assert "/rotate" not in shown


def _write(steward: Client, statement: str) -> None:
    app: Any = steward.app  # type: ignore[attr-defined]
    app.state.database.write(lambda connection: connection.execute(text(statement)), is_committed=lambda *_: False)


def test_a_webhook_is_tested_paused_rotated_and_deleted(api: Client, steward: Client) -> None:
    _make(steward)
    (made,) = _listed(api)
    page = f"/webhooks/{made['id']}"
    assert submit(steward, page, f"{page}/test").headers["Location"] == f"{page}?done=test"
    (sent,) = json_of(api.get(f"/v1{page}/deliveries"))["items"]
    shown = steward.get(f"{page}?done=test").text
    assert sent["created_at"][:10] in shown
    assert "&#34;type&#34;: &#34;test&#34;" in shown
    assert "A test message is sent within seconds." in shown
    _write(steward, "UPDATE deliveries SET state = 'delivered', due_at = NULL")
    assert "A test message" not in steward.get(f"{page}?done=test").text
    assert submit(steward, page, f"{page}/active", active="no").headers["Location"] == f"{page}?done=inactive"
    assert "(paused)" in steward.get(page).text
    assert not _listed(api)[0]["active"]
    submit(steward, page, f"{page}/active", active="yes")
    assert _listed(api)[0]["active"]
    assert "whsec_" in submit(steward, page, f"{page}/rotate").text
    assert _listed(api)[0]["generation"] == 2
    assert submit(steward, page, f"{page}/delete").headers["Location"] == "/webhooks?done=deleted"
    assert _listed(api) == []
    assert steward.get(page).status_code == 404


def test_a_message_that_failed_is_tried_again(api: Client, steward: Client) -> None:
    _make(steward)
    page = f"/webhooks/{_listed(api)[0]['id']}"
    submit(steward, page, f"{page}/test")
    _write(steward, "UPDATE deliveries SET state = 'failed', due_at = NULL")
    (sent,) = json_of(api.get(f"/v1{page}/deliveries"))["items"]
    action = f"{page}/deliveries/{sent['id']}/retry"
    assert submit(steward, page, action).headers["Location"] == f"{page}?done=retry"
    assert json_of(api.get(f"/v1{page}/deliveries"))["items"][0]["state"] != "failed"


def test_a_webhook_is_changed(api: Client, steward: Client) -> None:
    _make(steward, accounts="persons")
    (made,) = _listed(api)
    page = f"/webhooks/{made['id']}"
    fields = {"name": "team", "url": "https://other.agency.example/", "events": ["change.proposed"], "below": ""}
    answer = submit(steward, page, f"{page}/change", **fields)
    assert answer.headers["Location"] == f"{page}?done=changed"
    (changed,) = _listed(api)
    assert (changed["name"], changed["url"], changed["events"]) == ("team", fields["url"], fields["events"])
    assert (changed["below"], changed["accounts"]) == (None, None)
    answer = submit(steward, page, f"{page}/change", **fields | {"url": "https://10.0.0.8/"})
    assert answer.status_code == 422
    none = submit(steward, page, f"{page}/change", **fields | {"events": []})
    assert '<a href="#events">Events</a>: expected at least one event' in none.text
    assert '<a href="#url">Address</a>: expected another host' in answer.text
    assert 'value="https://10.0.0.8/"' in answer.text
    assert "<details open>" in answer.text


def test_all_faults_of_a_form_are_told_at_once(steward: Client) -> None:
    answer = _make(steward, url="https://10.0.0.8/", below="150 %")
    assert "2 fields are wrong" in answer.text
    assert (
        '<a href="#below">Share of the budget</a>: expected a share of the budget, such as 20 % or 0.2' in answer.text
    )
    assert "expected a share of the budget, such as 20 % or 0.2" in _make(steward, below="abc").text


def test_the_secret_part_of_an_address_is_behind_a_disclosure(steward: Client) -> None:
    shown = _make(steward, url="https://hooks.agency.example/services/T0/secret").text
    assert "<summary>The whole address</summary>https://hooks.agency.example/services/T0/secret</details>" in shown
    listed = steward.get("/webhooks").text
    assert "https://hooks.agency.example/…" in listed
    assert "T0/secret" not in listed


def test_a_share_may_be_a_percentage(api: Client, steward: Client) -> None:
    _make(steward, below="20 %")
    assert _listed(api)[0]["below"] == "0.2"
    assert "budget.below 20&nbsp;%" in steward.get(f"/webhooks/{_listed(api)[0]['id']}").text


def test_two_webhooks_have_two_names(api: Client, steward: Client) -> None:
    _make(steward)
    answer = _make(steward, url="https://other.agency.example/")
    assert (answer.status_code, len(_listed(api))) == (422, 1)
    assert "no other webhook" in answer.text
    _make(steward, name="second")
    page = f"/webhooks/{_listed(api)[1]['id']}"
    assert submit(steward, page, f"{page}/change", **_FIELDS).status_code == 422
    assert [one["name"] for one in _listed(api)] == ["approvals", "second"]


def test_a_form_that_is_sent_twice_makes_one_webhook(api: Client, steward: Client) -> None:
    shown = steward.get("/webhooks").text
    sent = {name: hidden(shown, name) for name in ("csrf", "once")} | _FIELDS | {"below": "0.2"}
    first, second = (steward.post("/webhooks", data=sent) for _ in range(2))
    assert re.findall(r"whsec_[^<]*", first.text) == re.findall(r"whsec_[^<]*", second.text)
    assert len(_listed(api)) == 1


def test_a_mistyped_account_and_failures_are_shown(api: Client, steward: Client) -> None:
    shown = _make(steward, accounts="persons, labour-2072").text
    assert "No account has the name labour-2072." in shown
    assert "not open: labour-2072" in steward.get("/webhooks").text
    (made,) = _listed(api)
    assert "none yet" in steward.get(f"/webhooks/{made['id']}").text
    submit(steward, f"/webhooks/{made['id']}", f"/webhooks/{made['id']}/test")
    app: Any = steward.app  # type: ignore[attr-defined]
    failed = text(
        "INSERT INTO delivery_tries (delivery_id, number, at, milliseconds, reason)"
        " SELECT id, 1, created_at, 5, 'refused' FROM deliveries"
    )
    app.state.database.write(lambda connection: connection.execute(failed), is_committed=lambda *_: False)
    assert "failing since" in steward.get("/webhooks").text
    assert "failing since" in steward.get(f"/webhooks/{made['id']}").text


def test_only_stewards_see_them(api: Client, visitor: Client) -> None:
    sign_in(visitor, make_key(api, "pipeline")["Authorization"].removeprefix("Bearer "))
    assert visitor.get("/webhooks").status_code == 403
    assert "Notifications" not in visitor.get("/").text
