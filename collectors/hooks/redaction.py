"""Secrets (passwords, tokens, keys) taken out of free text before it is written or shown.

Command lines are kept by an allow-list (``format.command``); this is for what is left: errors,
warnings, paths, and facts of a script. An address keeps its scheme, host and plain path.

A secret is known by the name it is given to (``--password VALUE``, ``--api-key=VALUE``,
``HF_TOKEN=VALUE``, ``"secret": "VALUE"``), by its place (``user:VALUE@host``) or by its own form
(``AKIA...``, ``ghp_...``, a JWT). Harmless arguments that only sound alike are kept: a name counts
by its last word (``--token-length``, ``--key-dim``), words that models are made of do not count
(``--pad-token``, ``--sort-key``) unless the value looks random, and tokens and keys that are
numbers are counts (``--tokens 2048``). Where in doubt, the value is hidden. Nobody can find every
secret this way; the recording is kept private for the others.

Hiding twice changes nothing more. Python 3.8, standard library only: the hooks use it too.
"""

from __future__ import annotations

import math
import re

from .format import may_hold_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HIDDEN = "REDACTED"
# What stands for a value of a command line (``format.command``).
HASHED = re.compile(r"hidden:[0-9a-f]{10}")

# The forms that issuers give their keys.
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA|AIDA|AROA|AGPA)[A-Z0-9]{12,}"
    r"|AIza[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{12,}"
    r"|github_pat_\w{12,}"
    r"|glpat-[\w-]{12,}"
    r"|xox[abeoprs]-[\w-]{10,}"
    r"|(?:pypi-|npm_|dop_v1_|ya29\.)[\w-]{16,}"
    r")"
    r"|(?<![\w-])(?:sk-(?=[\w-]*\d)[\w-]{12,}|eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)*)",
    re.DOTALL,
)

# scheme://user:password@host; a password may have any of these signs in it, unescaped.
# Here and below a name is only looked for where it can begin: the time stays linear.
_USER_AND_PASSWORD = re.compile(
    r"(?<![\w+.-])([A-Za-z][\w+.-]*://[^\s:/@\"'<>]*):(?!\d{1,5}/)([^\s\"'<>]{0,1024})@"
)
_ONLY_USER = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://)([^\s:/@\"'<>]+)@")
# What signs a request (Azure's sig, Google's X-Goog-Signature) stands behind the question mark.
_QUERY = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://[^\s?#\"'<>]{1,1024})[?#][^\s\"'<>]+")
# Webhooks are secret by their paths.
_WEB_PATH = re.compile(r"(?<![\w+.-])(https?://[^\s/?#\"'<>]{1,256})(/[^\s?#\"'<>]+)")
# A cluster's link is none: ``8xA100-80GB:nvlink@200Gbps``.
_BARE_USER_AND_PASSWORD = re.compile(
    r"(?<![\w/:.+-])([\w.+-]+):([^\s@/:\"'<>]+)@(?!\d+(?:\.\d+)?[KMGT]bps)(?=[\w.-])"
)

_QUOTED = r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?"
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)(?P<sep>\\?[\"']?\s*(?:=|:(?!:|//))\s*)"
    r"(?P<value>\\?(?:" + _QUOTED + r")|(?:[Bb]earer|[Bb]asic|[Tt]oken)\s+[^\s\"',;&]+"
    r"|[^\s\"',;&(){}\[\]]+)"
)
_OPTION_AND_VALUE = re.compile(
    r"(?<!\S)(?P<name>--?[A-Za-z][\w.-]*)(?P<sep>\s+)(?P<value>" + _QUOTED + r"|[^\s]+)"
)
_SCHEME_AND_TOKEN = re.compile(r"\b(?P<sep>(?:[Bb]earer|[Bb]asic)\s+)(?P<value>[\w+/=.~-]{8,})")
_OPTION = re.compile(r"--?[A-Za-z]")

_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBER_OR_FLAG = re.compile(
    r"[-+]?[\d_,]*\.?\d+(?:e[-+]?\d+)?[kmgtKMGTB]?|true|false|none|null|yes|no|auto|on|off|\s*",
    re.IGNORECASE,
)

# Last words of a name whose value is secret whatever it looks like, numbers too.
_PASSWORDS = ("password", "passwd", "pwd", "passphrase", "passcode", "secret", "credential", "otp")
# Those whose value is secret if it is no number.
_TOKENS = ("token", "auth", "authorization", "cookie", "bearer", "jwt", "pat")
_KEYS = ("apikey", "authkey", "accesskey", "secretkey", "privatekey", "accountkey", "sshkey",
         "licensekey")  # fmt: skip
# What stands before "key" in the name of a secret one, and before "pass".
_OF_KEYS = re.compile(
    r"api|access|account|admin|app|auth|aws|azure|client|comet|deploy|encryption|gcp|google|hf|hub"
    r"|license|master|neptune|openai|anthropic|wandb|private|secret|service|sharing|signing|ssh"
    r"|storage|subscription|tunnel|user"
)
_OF_PASSES = re.compile(r"db|user|my|mysql|pg|postgres|smtp|mail|redis|login|ssh|admin|root|")
# What stands before "token" in the name of a model's own.
_OF_MODELS = re.compile(
    r"pad|eos|bos|unk|mask|sep|cls|special|start|end|stop|image|audio|video|prompt|trigger|added"
    r"|placeholder|initializer|decoder|mem|memory|class|register|query|extra"
)


def redacted(text: str) -> str:
    """Return a text (a line, an error, a URL) with the secrets in it hidden."""
    if not may_hold_secrets(text):
        return text
    text = _FORMS.sub(HIDDEN, text)
    text = _USER_AND_PASSWORD.sub(r"\1:" + HIDDEN + "@", text)
    text = _ONLY_USER.sub(_user_hidden, text)
    text = _QUERY.sub(r"\1?" + HIDDEN, text)
    text = _WEB_PATH.sub(_path_hidden, text)
    text = _BARE_USER_AND_PASSWORD.sub(r"\1:" + HIDDEN + "@", text)
    text = _SCHEME_AND_TOKEN.sub(_token_hidden, text)
    text = _NAMED.sub(_value_hidden, text)
    return _OPTION_AND_VALUE.sub(_value_hidden, text)


def redacted_json(value: Any) -> Any:
    """Return JSON data with the secrets hidden in every text, by the text's key too."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {
            redacted(key) if isinstance(key, str) else key: HIDDEN
            if isinstance(key, str) and isinstance(each, str) and _is_secret(key, each)
            else redacted_json(each)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted_json(each) for each in value]
    return value


def _value_hidden(match: Any) -> str:
    name, separator, value = match["name"], match["sep"], match["value"]
    bare = value.strip("\\\"'")
    if _OPTION.match(value) or not _is_secret(name, bare):
        return str(match[0])
    mark = "\\" if value.startswith("\\") else ""  # a quote inside quoted JSON
    quote = value.lstrip("\\")[:1]
    quote = mark + quote if quote in "\"'" else ""
    return str(name + separator + quote + HIDDEN + quote)


def _token_hidden(match: Any) -> str:
    is_token = looks_random(match["value"], least=8)
    return str(match["sep"] + HIDDEN if is_token else match[0])


def _user_hidden(match: Any) -> str:
    is_web = match[1].lower().startswith("http")
    is_secret = looks_random(match[2]) or (is_web and match[2] != "git")
    return str(match[1] + HIDDEN + "@" if is_secret else match[0])


def _path_hidden(match: Any) -> str:
    """Hide a path that says "hook", or has a part that nobody would think of."""
    parts = match[2].split("/")
    is_secret = "hook" in str(match[0]).lower() or any(looks_random(one, 10) for one in parts)
    return str(match[1] + "/" + HIDDEN if is_secret else match[0])


def _is_secret(name: str, value: str) -> bool:
    """Whether ``value`` is one that nobody else may see, given to this name."""
    words = [word.lower() for word in _NAME_WORDS.findall(name) if not word.isdigit()]
    if not words or not value or HASHED.fullmatch(value):
        return False
    before, last = (words[-2] if len(words) > 1 else ""), words[-1]
    is_option = name.startswith("--")
    one = last[:-1] if last.endswith("s") and last != "pass" else last
    if one.endswith(_PASSWORDS) or (last == "pass" and _OF_PASSES.fullmatch(before)):
        return not (one == "pwd" and value.startswith("/"))  # the working folder
    if _NUMBER_OR_FLAG.fullmatch(value):
        return False
    if one.endswith(_TOKENS) and last == one and not _OF_MODELS.fullmatch(before):
        return True
    if one.endswith(_KEYS) or (one == "key" and _OF_KEYS.fullmatch(before)):
        return True
    if last == "key" and is_option and not before:
        return True
    is_alike = one.endswith(("token", "key", "signature", "sig", "auth", "session"))
    return is_alike and looks_random(value)


def looks_random(value: str, least: int = 16) -> bool:
    """Whether nobody would think of such a value: long, mixed, and no sign often repeated."""
    if len(value) < least or not re.search(r"\d", value) or not re.search(r"[A-Za-z]", value):
        return False
    shares = [value.count(sign) / len(value) for sign in set(value)]
    # Hexadecimal digits give 3.5 bits a sign and more, words with a number less than 3.2.
    return -sum(share * math.log2(share) for share in shares) > (3.3 if least > 8 else 2.5)
