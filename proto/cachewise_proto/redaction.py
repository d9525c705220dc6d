"""Takes secrets out of tool-call arguments before they leave the process, then cuts them.

Works by pattern, so it is no proof: private keys; keys and tokens of well-known shape; bearer
tokens and basic authentication; passwords in URLs; values that follow words such as password or
api_key, as JSON, environment variable or option. Arguments are JSON text, often with JSON or shell
inside: quotes may be escaped several times, and a line break may be the two characters \\n.
Every repeat is bounded, so that the time stays linear.
"""

from __future__ import annotations

import re

MAX_ARGUMENT_CHARS = 400
MAX_RAW_CHARS = 4096
"""How much of the arguments to keep until they are redacted."""
LONGEST_SECRET_CHARS = 512
"""Of a secret longer than this its first part is enough for its pattern."""

REDACTED = "[redacted]"
_NEW = rf"(?!{re.escape(REDACTED)})"
"""What was redacted before (by the engine, say) stays as it is."""

_WORDS = r"api[_-]?key|access[_-]?key|secret|token(?!s)|passw(?:or)?d|passphrase|credential"

_NEAR_WORDS = ("api", "access", "secret", "token", "passw", "passphrase", "credential")

# What must stay is in the groups `keep` (before the secret) and `after`; the first pattern goes
# first. Before each one what the text must have in it, in small letters, to be worth the search:
# most arguments have nothing of the kind.
_PATTERNS = (
    (
        ("-----begin",),
        re.compile(
            r"(?P<keep>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY)"
            r".*?(?P<after>-----END [A-Z0-9 ]{0,40}PRIVATE KEY|\Z)",
            re.DOTALL,
        ),
    ),
    (
        ("://",),
        re.compile(r"(?P<keep>://[^\s/:@\"'\\]{0,256}:)[^\s/\"'\\]{1,512}(?P<after>@)"),
    ),
    (
        ("authorization",),
        re.compile(
            r"(?i)(?P<keep>authorization(?:\W(?!redacted\])){1,16}"
            r"(?:(?:bearer|basic|token|digest)\s{1,4})?+)" + _NEW + r"[^\s\"'\\]{1,4096}(?P<after>)"
        ),
    ),
    (
        ("bearer",),
        re.compile(r"(?i)(?P<keep>\bbearer\s{1,4})[\w.~+/=-]{6,4096}(?P<after>)"),
    ),
    (
        (
            "sk-",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "xox",
            "akia",
            "asia",
            "aiza",
            "hf_",
            "npm_",
            "pypi-",
            "eyj",
        ),
        re.compile(
            r"(?P<keep>\b)(?:sk-[\w-]{16,256}|gh[pousr]_\w{20,256}|github_pat_\w{20,256}"
            r"|glpat-[\w-]{16,256}|xox[a-z]-[\w-]{10,256}|(?:AKIA|ASIA)[A-Z0-9]{16}"
            r"|AIza[\w-]{30,64}|hf_\w{20,64}|npm_\w{30,64}|pypi-[\w-]{40,512}"
            r"|eyJ[\w-]{8,2048}\.[\w-]{8,4096}(?:\.[\w-]{0,2048})?)(?P<after>)"
        ),
    ),
    (
        _NEAR_WORDS,
        re.compile(
            rf"(?i)(?P<keep>(?:{_WORDS})[\w-]{{0,40}}\\{{0,8}}[\"']?\s{{0,4}}[=:]\s{{0,4}}){_NEW}"
            r"(?:(?P<quote>\\{0,8}[\"'])(?:(?!(?P=quote))(?:\\.|.)){0,512}"
            r"|[^\s\"'\\,;&|)}\]]{1,512})(?P<after>)",
            re.DOTALL,
        ),
    ),
    (
        _NEAR_WORDS,
        re.compile(
            rf"(?i)(?P<keep>--?[a-z-]{{0,40}}(?:{_WORDS})[a-z-]{{0,20}}\s{{1,4}}){_NEW}"
            r"[^\s\"'\\]{1,512}(?P<after>)"
        ),
    ),
)


def redact(arguments: str) -> str:
    """The arguments without the secrets that have a pattern, at most MAX_ARGUMENT_CHARS of them.

    arguments: the first MAX_RAW_CHARS of a tool call's arguments, or all if there are fewer.
    """
    if len(arguments) >= MAX_RAW_CHARS:
        # The cut may go through a secret, and its rest may be too short for its pattern.
        arguments = arguments[: MAX_RAW_CHARS - LONGEST_SECRET_CHARS]
    # Tokens are counted in most arguments, and no secrets.
    lowered = arguments.casefold().replace("tokens", " s")
    # As the patterns compare, which take a dotless i, and an I with a dot, for an i.
    if not lowered.isascii():
        lowered = lowered.replace("\u0131", "i").replace("\u0307", "")
    for signs, pattern in _PATTERNS:
        for sign in signs:  # any() would take longer than all the rest
            if sign in lowered:
                arguments = pattern.sub(rf"\g<keep>{REDACTED}\g<after>", arguments)
                break
    return arguments[:MAX_ARGUMENT_CHARS]
