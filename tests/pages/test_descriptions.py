"""Metadata of accounts and releases in a form: only the edited fields change."""

from typing import Any

import pytest
import yaml

from service.api.schemas.metadata import Metadata
from service.pages.description_form import SECTIONS, Edit, digests, edit_of, field_of, field_texts
from tests.api.calls import Client, json_of, make_key
from tests.pages.forms import Form, form_of, signed_in

_AT = "/accounts/persons/description"
_NEEDED = {
    "data_curators": "The office\r\n\r\n  Another office ",
    "intended_use": "Planning\r\nof schools",
    "data_product_type": "Summary statistics",
    "data_product_region": "The country",
    "description": "Counts",
    "publication_date": "2026-01-31",
}
_STORED = _NEEDED | {"data_curators": ["The office", "Another office"], "intended_use": "Planning\nof schools"}


def _form(client: Client, at: str = _AT) -> Form:
    return form_of(client.get(at), at)


def _save(client: Client, texts: dict[str, Any], at: str = _AT) -> Any:
    return client.post(at, data=_form(client, at).with_texts(texts))


def _said(api: Client, at: str = "/accounts/persons") -> Any:
    return json_of(api.get(f"/v1{at}"))["metadata"]


def test_every_field_of_the_contract_is_asked_once() -> None:
    asked = [one.name for section in SECTIONS for one in section.fields]
    assert sorted(asked) == sorted(Metadata.model_fields)
    kinds = {one.name: (one.kind, one.needed) for section in SECTIONS for one in section.fields}
    assert kinds["data_curators"] == ("lines", True)
    assert kinds["publication_date"] == ("day", True)
    assert kinds["model_name"] == ("choice", False)
    assert kinds["notes"] == ("prose", False)
    assert kinds["url_slug"] == ("line", False)
    assert {name for name, (_, needed) in kinds.items() if needed} - {"name"} == set(_NEEDED)


def test_a_description_is_saved_shown_and_becomes_an_entry(steward: Client, api: Client) -> None:
    before = steward.get(_AT).text
    assert "The description lacks:" in before
    assert '<a href="#intended_use">Intended use</a>' in before
    answer = _save(steward, _NEEDED)
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{_AT}?done=described")
    assert _said(api) == _STORED
    shown = steward.get(answer.headers["Location"]).text
    assert "The description is saved." in shown
    entry = yaml.safe_load(steward.get("/accounts/persons/registry-entry").text)
    assert entry["deployment"]["basic"]["data_curators"] == ["The office", "Another office"]
    assert "intended_use: |-" in shown
    assert "Planning\nof schools" in steward.get("/accounts/persons").text
    assert len([e for e in _kinds(api) if e == "described"]) == 1
    assert _save(steward, {}).status_code == 303  # nothing typed, nothing changed
    assert len([e for e in _kinds(api) if e == "described"]) == 1
    assert _save(steward, {"intended_use": "", "data_curators": " \r\n "}).status_code == 303
    assert _said(api) == {name: text for name, text in _STORED.items() if name not in ("intended_use", "data_curators")}


def _kinds(api: Client) -> list[str]:
    return [item["entry"]["kind"] for item in json_of(api.get("/v1/accounts/persons/journal"))["items"]]


def test_a_release_has_its_own_and_its_account_s(steward: Client, api: Client) -> None:
    _save(steward, _NEEDED)
    (release, *_) = json_of(api.get("/v1/accounts/persons/releases"))["items"]
    page = f"/accounts/persons/releases/{release['id']}"
    assert "If this field is empty, the text of the account applies." in steward.get(f"{page}/description").text
    _save(steward, {"intended_use": "Elections"}, f"{page}/description")
    assert _said(api, page) == {"intended_use": "Elections"}
    entry = yaml.safe_load(steward.get(f"{page}/registry-entry").text)["deployment"]["basic"]
    assert (entry["intended_use"], entry["data_product_region"]) == ("Elections", "The country")
    assert "Elections" in steward.get(page).text


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({"publication_date": "31 January"}, "publication_date"),
        ({"data_product_type": "A table"}, "data_product_type"),
        ({"url_slug": "Not a slug"}, "url_slug"),
        ({"data_curators": "ok\n" + "x" * 201}, "data_curators"),
        ({"intended_use": "x" * 10_001}, "intended_use"),
        ({"notes": "a\0b"}, "notes"),
    ],
)
def test_what_cannot_be_said_is_refused_at_its_field_and_what_was_typed_stays(
    steward: Client, api: Client, texts: dict[str, str], fault: str
) -> None:
    answer = _save(steward, {"description": "kept <words>", **texts})
    assert (answer.status_code, f'id="{fault}-fault"' in answer.text) == (422, True)
    assert "kept &lt;words&gt;" in answer.text
    assert _said(api) == {}
    again = form_of(answer, _AT)
    assert steward.post(_AT, data=again.with_texts({fault: ""})).status_code == 303
    assert _said(api) == {"description": "kept <words>"}


def test_all_of_it_can_be_too_long(steward: Client, api: Client) -> None:
    prose = [one.name for section in SECTIONS for one in section.fields if one.kind == "prose"]
    answer = _save(steward, dict.fromkeys(prose, "x" * 9_999))
    assert (answer.status_code, "65536" in answer.text) == (422, True)
    assert _said(api) == {}


def test_two_who_edit_at_once_keep_each_other_s_words(steward: Client, api: Client) -> None:
    _save(steward, {"notes": "old", "sources": "old"})
    mine = _form(steward)
    json_of(api.patch("/v1/accounts/persons", json={"metadata": {"sources": "theirs", "actors": "theirs"}}))
    assert steward.post(_AT, data=mine.with_texts({"notes": "mine"})).status_code == 303
    assert _said(api) == {"notes": "mine", "sources": "theirs", "actors": "theirs"}


def test_words_that_somebody_changed_meanwhile_are_shown_before_they_are_replaced(steward: Client, api: Client) -> None:
    _save(steward, {"notes": "old"})
    mine = _form(steward).with_texts({"notes": "mine", "actors": "mine"})
    json_of(api.patch("/v1/accounts/persons", json={"metadata": {"notes": "theirs", "sources": "theirs"}}))
    answer = steward.post(_AT, data=mine)
    assert (answer.status_code, 'id="notes-fault"' in answer.text, "theirs" in answer.text) == (409, True, True)
    assert _said(api) == {"notes": "theirs", "sources": "theirs"}
    assert steward.post(_AT, data=form_of(answer, _AT).fields).status_code == 303
    assert _said(api) == {"notes": "mine", "actors": "mine", "sources": "theirs"}


def test_a_form_sent_twice_is_one_entry(steward: Client, api: Client) -> None:
    form = _form(steward).with_texts({"notes": "n"})
    assert [steward.post(_AT, data=form).status_code for _ in range(2)] == [303, 303]
    assert _kinds(api).count("described") == 1


@pytest.mark.parametrize(("role", "account", "release"), [("auditor", 403, 403), ("pipeline", 403, 303)])
def test_who_may_describe_what(api: Client, role: str, account: int, release: int) -> None:
    key = make_key(api, role, role)["Authorization"].removeprefix("Bearer ")
    somebody = signed_in(api, key)  # type: ignore[arg-type]
    (first, *_) = json_of(api.get("/v1/accounts/persons/releases"))["items"]
    for at, status in ((_AT, account), (f"/accounts/persons/releases/{first['id']}/description", release)):
        shown = somebody.get(at)
        assert shown.status_code == 200
        assert ("<fieldset>" in shown.text) == (status == 303)
        csrf = Form(shown.text, "/sign-out").fields["csrf"]
        sent = {"csrf": csrf, "once": "o", **{f"was-{name}": "" for name in Metadata.model_fields}, "notes": "n"}
        assert somebody.post(at, data=sent).status_code == status


def test_blanks_around_and_line_ends_are_no_change() -> None:
    stored: dict[str, str | list[str]] = {"notes": " a\rb\r\nc\n", "registry_authors": ["x ", "y"]}
    shown = Edit.none(field_texts(stored))
    sent = {name: text.replace("\n", "\r\n") for name, text in shown.texts.items()}
    sent |= {f"was-{name}": digest for name, digest in shown.before.items()}
    assert edit_of(sent.__getitem__).patch() == {}
    assert edit_of((sent | {"notes": "", "registry_authors": "y\n\nz"}).__getitem__).patch() == {
        "notes": None,
        "registry_authors": ["y", "z"],
    }
    assert digests({"notes": ""}) == {"notes": ""}


@pytest.mark.parametrize(
    ("pointer", "field"),
    [("/metadata/notes", "notes"), ("/metadata/data_curators/0", "data_curators"), ("/metadata", ""), ("", "")],
)
def test_where_a_fault_is_shown(pointer: str, field: str) -> None:
    assert field_of(pointer) == field
