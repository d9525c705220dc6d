"""redaction.py: secrets do not leave the process."""

import json
import time

import pytest
from cachewise_proto import redaction
from cachewise_proto.redaction import MAX_ARGUMENT_CHARS, MAX_RAW_CHARS, redact
from hypothesis import given
from hypothesis import strategies as st

SECRET = "Zq8vT3xLr0aYb5Kc"
TOKENS = [
    "sk-proj-" + SECRET * 2,
    "sk-ant-api03-" + SECRET * 3,
    "ghp_" + SECRET * 2 + "abcd",
    "github_pat_" + SECRET * 3,
    "glpat-" + SECRET,
    "xoxb-" + SECRET,
    "AKIA" + SECRET.upper(),
    "AIza" + SECRET * 2,
    "hf_" + SECRET * 2,
    "npm_" + SECRET * 2,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + SECRET,
]
COMMANDS = [
    f"curl -H 'Authorization: Bearer {SECRET}' https://example.org",
    f'curl -H "Authorization: Basic {SECRET}=="',
    f"curl -H 'Authorization: token {SECRET}'",
    f"curl -H 'X-Api-Key: {SECRET}'",
    f"psql postgres://admin:{SECRET}@db.local/prod",
    f"git clone https://x-access-token:{SECRET}@example.org/r.git",
    f"export AWS_SECRET_ACCESS_KEY={SECRET}",
    f"PASSWORD='{SECRET} {SECRET}' ./run",
    f'echo "{{\\"password\\": \\"{SECRET} x {SECRET}\\"}}" > f.json',
    f"mysql --password {SECRET} -u root",
    f"tool --api-key={SECRET}",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
    *(f"export KEY_OF_IT {token} && echo {token}" for token in TOKENS),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_secrets_are_taken_out_and_the_rest_stays(command):
    once = json.dumps({"command": "make && " + command, "cwd": "/srv"})
    twice = json.dumps({"json": once})
    for arguments in (once, twice):
        redacted = redact(arguments)
        assert SECRET not in redacted
        assert SECRET.upper() not in redacted
        assert "[redacted]" in redacted
        assert "make && " in redacted
        assert redact(redacted) == redacted


@pytest.mark.parametrize(
    "arguments",
    [
        '{"command": "git status && git log --oneline -5"}',
        '{"path": "src/token_bucket.py", "max_tokens": 4096}',
        '{"url": "http://127.0.0.1:8000/v1/models"}',
        '{"pattern": "def password_hash", "glob": "**/*.py"}',
        "",
    ],
)
def test_arguments_without_secrets_stay_as_they_are(arguments):
    assert redact(arguments) == arguments


def test_the_cut_comes_after_the_redaction_and_leaves_no_half_of_a_secret():
    for before in (MAX_ARGUMENT_CHARS - 10, MAX_RAW_CHARS - 10):
        text = (f"password={SECRET} " * 400)[:before] + " sk-" + SECRET * 3
        redacted = redact(text[:MAX_RAW_CHARS])
        assert len(redacted) <= MAX_ARGUMENT_CHARS
        assert SECRET[:8] not in redacted


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "-",
        "\\",
        '"',
        "password",
        "token:",
        "://a:",
        "eyJ" + "a" * 9 + ".",
        "-----BEGIN ",
        " -",
    ],
)
def test_hostile_arguments_take_little_time(piece):
    text = (piece * MAX_RAW_CHARS)[:MAX_RAW_CHARS]
    start = time.thread_time()
    redact(text)
    assert time.thread_time() - start < 0.25


@given(st.text(max_size=5000))
def test_any_text_is_cut_and_raises_nothing(text):
    assert len(redact(text[:MAX_RAW_CHARS])) <= MAX_ARGUMENT_CHARS


@given(
    st.lists(
        st.sampled_from(
            [
                *COMMANDS,
                *TOKENS,
                "",
                " ",
                "make",
                "PASSWORD=",
                "tokens",
                "ecret=abc ",
                "TO\u212aEN=x",
                "ap\u0130key=x",
                "\u017fecret: x",
                "\u0131",
            ]
        )
    )
)
def test_no_pattern_is_skipped_that_would_find_something(pieces):
    text = "".join(pieces)[: MAX_RAW_CHARS - 1]
    everything = text
    for _, pattern in redaction._PATTERNS:
        everything = pattern.sub(rf"\g<keep>{redaction.REDACTED}\g<after>", everything)
    assert redact(text) == everything[:MAX_ARGUMENT_CHARS]
