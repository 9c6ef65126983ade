"""Browsers' forms and their policies: what is allowed, what is refused, and nothing but S3Error comes out."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headrace.http.body import GATHER_BYTES
from headrace.s3 import signature
from headrace.s3.errors import STATUS, S3Error
from headrace.s3.forms import FIELDS_BYTES_MAX, FIELDS_MAX, Form, LengthLimits, check_policy, check_signature

BOUNDARY = "xYzZY"
KIND = f"multipart/form-data; boundary={BOUNDARY}"
NOW_S = 1_800_000_000.0
LATER, BEFORE = "2030-01-01T12:00:00.000Z", "2020-01-01T12:00:00.000Z"
SECRETS = {"AK": "secret"}


def body_of(
    fields: list[tuple[str, str]], file: bytes = b"data", *, name: str = "cat.jpg", rest: bytes = b""
) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    parts.append(f"{head}Content-Type: image/jpeg\r\n\r\n".encode() + file + b"\r\n")
    return b"".join(parts) + rest + f"--{BOUNDARY}--\r\n".encode()


def pieces(body: bytes, step: int) -> Iterator[bytes]:
    return iter([body[offset : offset + step] for offset in range(0, len(body), step)])


def policy_of(*conditions: Any, expiration: str = LATER, **more: Any) -> str:
    policy = {"expiration": expiration, "conditions": list(conditions), **more}
    return base64.b64encode(json.dumps(policy).encode()).decode()


def code_of(call: Any, *words: Any) -> str:
    with pytest.raises(S3Error) as raised:
        call(*words)
    assert raised.value.code in STATUS
    return raised.value.code


def check(fields: dict[str, str], *conditions: Any, **more: Any) -> LengthLimits:
    policy = policy_of({"bucket": "b"}, *conditions, **more)
    return check_policy({**fields, "policy": policy}, "b", NOW_S)


@pytest.mark.parametrize("step", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize("file", [b"", b"\r\n", b"\r\n--xYzZ", b"data" * 1000, b"\r\n--\r\n\r\n"])
def test_a_form_is_read_in_pieces_of_any_size(step: int, file: bytes) -> None:
    body = body_of([("key", "a/${filename}"), ("Content-Type", ""), ("x-amz-meta-a", "ü\r\nx")], file)
    form = Form(pieces(body, step), KIND)
    assert form.fields == {"key": "a/${filename}", "content-type": "", "x-amz-meta-a": "ü\r\nx"}
    assert form.file_name == "cat.jpg"
    assert b"".join(form.file(LengthLimits())) == file


def test_what_comes_after_the_file_means_nothing_and_is_bounded() -> None:
    extra = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="key"\r\n\r\nother\r\n'.encode()
    form = Form(iter([body_of([("key", "a")], rest=extra)]), KIND)
    assert b"".join(form.file(LengthLimits())) == b"data"
    assert form.fields == {"key": "a"}
    form = Form(pieces(body_of([("key", "a")], rest=extra * 1000), 4096), KIND)
    assert code_of(lambda: list(form.file(LengthLimits()))) == "MalformedPOSTRequest"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (body_of([("key", "a")]), "application/json"),
        (body_of([("key", "a")]), "multipart/form-data"),
        (body_of([("key", "a")]), "multipart/form-data; boundary=other"),
        (b"", KIND),
        (b"preamble" + body_of([("key", "a")]), KIND),
        (body_of([("key", "a"), ("KEY", "b")]), KIND),
        (body_of([(f"x-ignore-{n}", "") for n in range(201)]), KIND),
        (f"--{BOUNDARY}\r\nContent-Type: x\r\n\r\na\r\n--{BOUNDARY}--".encode(), KIND),
        (f"--{BOUNDARY}\r\nX: {'x' * 5000}\r\n\r\na\r\n".encode(), KIND),
        (body_of([("key", "a")]).replace(b'name="key"', b'name=""'), KIND),
        (body_of([("key", "a")]).replace(b"\r\n\r\na\r\n", b"\r\n\r\n\xff\r\n"), KIND),
    ],
)
def test_what_is_no_form(body: bytes, kind: str) -> None:
    assert code_of(Form, iter([body]), kind) == "MalformedPOSTRequest"


def test_a_form_without_a_file_with_too_much_before_it_and_cut_off() -> None:
    assert code_of(Form, iter([f"--{BOUNDARY}--\r\n".encode()]), KIND) == "InvalidArgument"
    large = body_of([("key", "a" * FIELDS_BYTES_MAX), ("x-ignore-a", "b")])
    assert code_of(Form, pieces(large, 4096), KIND) == "MaxPostPreDataLengthExceededError"
    body = body_of([("key", "a")])
    cut = Form(iter([body[: body.rindex(b"data\r\n") + 2]]), KIND)
    assert code_of(lambda: list(cut.file(LengthLimits()))) == "MalformedPOSTRequest"


def test_no_thread_waits_for_the_fields_of_a_form() -> None:
    """Names without values: the sender is unknown until the last of them, and may send no more."""
    head = f'Content-Disposition: form-data; name="x-ignore-{"a" * 400}{{}}"\r\n\r\n\r\n'
    body = "".join(f"--{BOUNDARY}\r\n{head.format(number)}" for number in range(FIELDS_MAX)).encode()
    assert len(body) > GATHER_BYTES

    def received() -> Iterator[bytes]:
        yield body[:GATHER_BYTES]
        raise AssertionError("the form waits for more")

    assert code_of(Form, received(), KIND) == "MaxPostPreDataLengthExceededError"
    arrived = body_of([("key", "a")], b"data" * GATHER_BYTES)
    form = Form(iter([arrived[:GATHER_BYTES], arrived[GATHER_BYTES:]]), KIND)
    assert b"".join(form.file(LengthLimits())) == b"data" * GATHER_BYTES


@pytest.mark.parametrize(
    ("least", "most", "code"), [(0, 3, "EntityTooLarge"), (5, 9, "EntityTooSmall"), (4, 4, "")]
)
def test_the_length_of_the_file(least: int, most: int, code: str) -> None:
    form = Form(iter([body_of([("key", "a")])]), KIND)
    if code:
        assert code_of(lambda: list(form.file(LengthLimits(least, most)))) == code
    else:
        assert b"".join(form.file(LengthLimits(least, most))) == b"data"


def test_conditions_that_hold() -> None:
    fields = {
        "key": "user/a.jpg",
        "content-type": "image/png,image/gif",
        "x-ignore-me": "1",
        "acl": "private",
    }
    limits = check(
        fields,
        ["starts-with", "$key", "user/"],
        ["STARTS-WITH", "$Content-Type", "image/"],
        {"ACL": "private"},
        ["starts-with", "$x-amz-meta-any", ""],
        ["content-length-range", 1, "10"],
        ["content-length-range", 0, 8],
    )
    assert limits == LengthLimits(1, 8)
    assert check({"key": "k"}, ["eq", "$key", "k"]) == LengthLimits()


@pytest.mark.parametrize(
    ("fields", "conditions"),
    [
        ({"key": "k"}, []),  # a field that no condition names
        ({"key": "k", "acl": "private"}, [{"key": "k"}]),
        ({"key": "k", "x-amz-meta-a": "1"}, [{"key": "k"}]),
        ({"key": "other/k"}, [["starts-with", "$key", "user/"]]),
        ({"key": "K"}, [{"key": "k"}]),
        ({"key": "k"}, [["eq", "$key", ""]]),
        ({"key": "k"}, [{"key": "k"}, {"x-amz-meta-a": "needed"}]),
        ({"key": "k"}, [{"key": "k"}, {"key": "l"}]),
        ({"key": "k"}, [{"key": "k"}, {"bucket": "other"}]),
        (
            {"key": "k", "content-type": "image/png,text/html"},
            [{"key": "k"}, ["starts-with", "$content-type", "image/"]],
        ),
    ],
)
def test_conditions_that_fail(fields: dict[str, str], conditions: list[Any]) -> None:
    assert code_of(lambda: check(fields, *conditions)) == "AccessDenied"


def test_a_policy_that_expired_or_names_no_bucket() -> None:
    assert code_of(lambda: check({"key": "k"}, {"key": "k"}, expiration=BEFORE)) == "AccessDenied"
    policy = policy_of({"key": "k"})
    assert code_of(check_policy, {"key": "k", "policy": policy}, "b", NOW_S) == "AccessDenied"


@pytest.mark.parametrize(
    "policy",
    [
        "",
        "not base64",
        base64.b64encode(b"not json").decode(),
        base64.b64encode(b"[" * 100_000).decode(),
        base64.b64encode(b'{"conditions": []}').decode(),
        base64.b64encode(b'{"expiration": "2030-01-01T00:00:00Z"}').decode(),
        policy_of({"key": 1}),
        policy_of({"key": {"a": "b"}}),
        policy_of("key"),
        policy_of([]),
        policy_of(["eq", "$key"]),
        policy_of(["eq", "key", "k"]),
        policy_of(["matches", "$key", "k"]),
        policy_of(["eq", "$key", 1]),
        policy_of(["content-length-range", 5, 1]),
        policy_of(["content-length-range", -1, 1]),
        policy_of(["content-length-range", "a", 1]),
        policy_of(["content-length-range", 1]),
        policy_of(expiration="tomorrow"),
        policy_of(expiration="2030-01-01T00:00:00"),
        policy_of(expiration=""),
    ],
)
def test_what_is_no_policy(policy: str) -> None:
    assert code_of(check_policy, {"policy": policy}, "b", NOW_S) == "InvalidPolicyDocument"


def signed(policy: str, **changed: str) -> dict[str, str]:
    key = signature.signing_key("secret", "20261123", "us-east-1")
    return {
        "policy": policy,
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": "AK/20261123/us-east-1/s3/aws4_request",
        "x-amz-date": "20261123T000000Z",
        "x-amz-signature": hmac.new(key, policy.encode(), "sha256").hexdigest(),
        **changed,
    }


def test_only_a_policy_that_was_signed_counts() -> None:
    policy = policy_of({"bucket": "b"}, {"key": "k"})
    check_signature(signed(policy), SECRETS)
    assert (
        code_of(check_signature, signed(policy) | {"policy": policy_of()}, SECRETS) == "SignatureDoesNotMatch"
    )
    assert (
        code_of(check_signature, signed(policy, **{"x-amz-signature": ""}), SECRETS)
        == "SignatureDoesNotMatch"
    )
    assert code_of(check_signature, signed(policy), {"AK": "other"}) == "SignatureDoesNotMatch"
    assert code_of(check_signature, signed(policy), {"BK": "secret"}) == "InvalidAccessKeyId"
    for name in ("policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date"):
        fields = signed(policy)
        del fields[name]
        assert code_of(check_signature, fields, SECRETS) == "AccessDenied", name
    other_day = {"x-amz-credential": "AK/20261122/us-east-1/s3/aws4_request"}
    assert code_of(check_signature, signed(policy, **other_day), SECRETS) == "AccessDenied"


words = some.text(max_size=8) | some.sampled_from(
    ["eq", "starts-with", "content-length-range", "$key", "bucket", "b"]
)
json_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | words,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@given(some.lists(json_values, max_size=4), some.dictionaries(words, words, max_size=4))
def test_whatever_a_policy_says_it_is_refused_or_names_every_field(
    conditions: Any, fields: dict[str, str]
) -> None:
    policy = policy_of(*conditions)
    try:
        limits = check_policy({**fields, "policy": policy}, "b", NOW_S)
    except S3Error as error:
        assert error.code in ("AccessDenied", "InvalidPolicyDocument")
        return
    assert limits.least >= 0  # and perhaps more than most: two ranges that exclude each other
    named = {name.lower() for condition in conditions if isinstance(condition, dict) for name in condition}
    named |= {
        condition[1][1:].lower()
        for condition in conditions
        if isinstance(condition, list) and len(condition) == 3
    }
    free = ("policy", "file", "x-amz-signature")
    assert {name for name in fields if name not in free and not name.startswith("x-ignore-")} <= named


@given(some.data())
def test_whatever_bytes_a_form_has_they_are_refused_or_are_its_own(data: some.DataObject) -> None:
    whole = body_of([("key", "a"), ("x-amz-meta-b", "c")], b"data\r\n--xY")
    start, end = sorted((data.draw(some.integers(0, len(whole))), data.draw(some.integers(0, len(whole)))))
    inserted = data.draw(
        some.binary(max_size=8) | some.sampled_from([b"\r\n", b"--", f"--{BOUNDARY}".encode()])
    )
    body = whole[:start] + inserted + whole[end:]
    try:
        form = Form(pieces(body, data.draw(some.integers(1, 64))), KIND)
        file = b"".join(form.file(LengthLimits()))
    except S3Error as error:
        assert error.code in STATUS
        return
    assert file in body
    assert all(value.encode() in body for value in form.fields.values())
