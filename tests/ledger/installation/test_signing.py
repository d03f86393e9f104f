"""Signatures of the installation: RFC 8785 with doubles, Ed25519, and statements that cannot be taken for others."""

import json
import shutil
import struct
import subprocess
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import example, given, strategies as st

from service.ledger.installation.signing import BadSignature, check_signature, signed_bytes, signer_of
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.journal import Head
from service.ledger.storage.secret import Secret

_HEAD = Head(7, "ab" * 32)


# RFC 8785 appendix B: bits of a double, and its text.
@pytest.mark.parametrize(
    ("bits", "written"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_doubles_are_written_as_in_the_rfc(bits: str, written: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert signed_bytes(value) == written.encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_read_back_from_its_text(value: float) -> None:
    assert float(signed_bytes(value)) == value


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_doubles_are_written_as_ecmascript_writes_them() -> None:
    values = [n * 10.0**e for n in (1, 1.5, 123456789, 0.1 + 0.2) for e in range(-30, 30)]
    said = subprocess.run(
        ["node", "-e", f"console.log(JSON.stringify({json.dumps(values)}))"], capture_output=True, text=True, check=True
    )
    assert signed_bytes(values) == said.stdout.strip().encode()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(_JSON)
@example([2**53, -(2**53)])
def test_without_doubles_it_is_the_journals_canonical_form(value: object) -> None:
    assert signed_bytes(value) == canonical(value).encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53 + 1, "\ud800", {"\ud800": 1}, {1: 2}, b"1"])
def test_what_cannot_be_signed_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"JCS|safe integer|UTF-8|surrogates|must be strings|unsupported"):
        signed_bytes(value)


def test_a_head_is_signed_by_a_key_that_hangs_on_the_secret_alone(secret: Secret) -> None:
    signer = signer_of(secret)
    said = signer.sign_head("people", _HEAD)
    signed = {name: value for name, value in said.items() if name != "signature"}
    assert (said["account"], said["seq"], said["hash"]) == ("people", 7, _HEAD.hash)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(said["public_key"]))
    key.verify(bytes.fromhex(said["signature"]), canonical(signed).encode())  # raises where it does not hold
    check_signature(said, "head", signer.public_key)
    check_signature(json.loads(json.dumps(said)), "head", None)
    assert signer_of(Secret(secret.key)).sign_head("people", _HEAD) == said
    assert signer_of(Secret(bytes(32))).public_key != signer.public_key


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seq": 8}, "not that of the statement"),
        ({"account": "others"}, "not that of the statement"),
        ({"more": True}, "not that of the statement"),
        ({"seq": float("nan")}, "not that of the statement"),
        ({"seq": (7,)}, "not that of the statement"),
        ({"signature": "00" * 64}, "not that of the statement"),
        ({"signature": "zz" * 64}, "in hexadecimal"),
        ({"signature": None}, "in hexadecimal"),
        ({"public_key": "00"}, "in hexadecimal"),
        ({"public_key": "00" * 32}, "another public key"),
        ({"installation": "0" * 32}, "with another public key"),
        ({"statement": "receipt"}, "of the kind 'head'"),
    ],
)
def test_a_statement_that_was_changed_is_refused(secret: Secret, change: dict[str, Any], reason: str) -> None:
    signer = signer_of(secret)
    with pytest.raises(BadSignature, match=reason):
        check_signature(signer.sign_head("people", _HEAD) | change, "head", signer.public_key)


def test_another_installations_statement_is_refused(secret: Secret) -> None:
    said = signer_of(Secret(bytes(32))).sign_head("people", _HEAD)
    check_signature(said, "head", None)
    with pytest.raises(BadSignature, match="another public key"):
        check_signature(said, "head", signer_of(secret).public_key)
