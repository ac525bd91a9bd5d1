"""Command lines as they are kept: what the advisor uses in clear, and hashes of the rest.

Kept are the program, the script, names of options, and values of options that say what is trained
how: numbers such as a batch size, and short words such as a device's. Every other value becomes
``hidden:`` and ten hexadecimal digits of an HMAC under the store's own key: equal values are equal
in the runs of one store, and nobody without the key can look one up. Hiding twice changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from advisor.collectors.atomic import written_once
from advisor.collectors.hooks.redaction import HASHED, looks_random, redacted

KEY_FILE: Final = ".key"  # in a store's folder
_PROCESS_KEY: Final = secrets.token_bytes(32)  # of a store that has none: for reading only

_OPTION: Final = re.compile(r"--?[A-Za-z][\w.-]{0,60}")
_ASSIGNED: Final = re.compile(
    r"(?P<name>[-+~]{0,2}[A-Za-z_][\w./-]{0,60})=(?P<value>.*)", re.DOTALL
)
# Names of files, odd ones too, and no addresses.
_PROGRAM: Final = re.compile(r"[^:@?#=&%]+")
_SCRIPT: Final = re.compile(r"[^:@?#=&%]+\.(py|sh|ipynb)")
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_NAME_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBER: Final = re.compile(
    r"[-+]?\d{0,12}(\.\d{0,12})?(e[-+]?\d{1,3})?[kKmMbBgG]?", re.IGNORECASE
)
_FLAG: Final = re.compile(r"true|false|yes|no|on|off|none|null|auto", re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Za-z]\w*([-.:/][A-Za-z0-9]\w*)*")
_LONGEST_WORD: Final = 40
# Words between a launcher and its script.
_VERBS: Final = re.compile(r"launch|run|fit|train|python[\d.]*|accelerate|torchrun|deepspeed")

# Last words of the names of options whose numbers are kept.
_NUMBERS: Final = re.compile(
    r"accum(ulation)?|alpha|batch(es)?|bs|betas?|channels|classes|clip|cpus?|crop|decay|depth"
    r"|devices?|dims?|[cdept]p|dropout|emb(d|ed)|epochs?|eps(ilon)?|every|experts|factor|ffn|folds"
    r"|freq(uency)?|gamma|gpus?|heads?|hidden|image|interval|iter(s|ations)?|layers?|len(gth)?"
    r"|limit|lr|machines|micro|momentum|n?nodes?|norm|nproc|passes|patience|proc(s|esses)|ranks?"
    r"|rate|ratio|repeat|replicas|resolution|samples|scale|seed|seq(uence)?|size|stage|steps?"
    r"|temperature|threads|tokens|vocab(ulary)?|warmup|wd|weight|width|workers|world|zero"
)
# First words of such names, whatever follows: --num-foo, --max-bar.
_COUNTS: Final = re.compile(r"num|n|max|min|nb")
# Last words of the names of options whose words are kept.
_WORDS: Final = re.compile(
    r"accelerator|arch(itecture)?|attention|backbone|backend|device|dtype|model|optim(izer)?"
    r"|platform|precision|recompute|scheduler?|strategy"
)


def store_key(store: Path) -> bytes:
    """Return the key of a store of runs, which is made where there is none.

    Raises OSError if it can be neither read nor written.
    """
    return written_once(store / KEY_FILE, secrets.token_bytes(32), mode=0o600)


def key_for_reading(store: Path) -> bytes:
    """Return the key of a store; where it has none, one that only this process knows."""
    try:
        return (store / KEY_FILE).read_bytes() or _PROCESS_KEY
    except OSError:
        return _PROCESS_KEY


def stored_command(words: Sequence[str], key: bytes) -> list[str]:
    """Return a command line's words as they are kept; as many words as before.

    >>> stored_command(["python", "train.py", "--lr", "1e-3", "--device=cuda", "-p"], b"")
    ['python', 'train.py', '--lr', '1e-3', '--device=cuda', '-p']
    """
    found: list[str] = []
    name, is_script = "", False
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        assigned = _ASSIGNED.fullmatch(word)
        if HASHED.fullmatch(word) or word in ("-", "--", ""):
            found.append(word)
        elif not is_script and (_is_script(word) or (before == "-m" and _MODULE.fullmatch(word))):
            is_script = True
            found.append(word)
        elif assigned is not None and _is_plain(assigned["name"]):
            value = _value(assigned["name"], assigned["value"], key)
            found.append(f"{assigned['name']}={value}")
        elif word[:1] == "-" and word[1:2] not in "0123456789.":
            name = word
            found.append(_option(word, key))
        elif not name and not is_script and _is_launcher(number, word):
            found.append(word)
        else:
            found.append(_value(name, word, key))
    return found


def _value(name: str, value: str, key: bytes) -> str:
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    if _FLAG.fullmatch(value) or HASHED.fullmatch(value) or not value:
        return value
    first, last = (words[0], words[-1]) if words else ("", "")
    counts = _NUMBERS.fullmatch(last) or _COUNTS.fullmatch(first)
    if counts and _NUMBER.fullmatch(value):
        return value
    is_word = len(value) <= _LONGEST_WORD and _WORD.fullmatch(value) is not None
    if is_word and _WORDS.fullmatch(last) and redacted(value) == value:
        return value if not looks_random(value) else _hashed(value, key)
    return _hashed(value, key)


def _option(word: str, key: bytes) -> str:
    """Return an option's name; a value that follows one letter without a space is hidden."""
    if word[:1] == "-" and HASHED.fullmatch(word[2:]):
        return word
    if _OPTION.fullmatch(word) is None or not _is_plain(word):
        return _hashed(word, key)
    words = [one.lower() for one in _NAME_WORDS.findall(word)]
    known = all(_NUMBERS.fullmatch(one) or _WORDS.fullmatch(one) for one in words)
    if word.startswith("--") or len(word) == 2 or known:
        return word
    return word[:2] + _hashed(word[2:], key)


def _is_plain(name: str) -> bool:
    return not looks_random(name) and redacted(name) == name


def _is_script(word: str) -> bool:
    return _SCRIPT.fullmatch(word) is not None and redacted(word) == word


def _is_launcher(number: int, word: str) -> bool:
    if number == 0:
        return _PROGRAM.fullmatch(word) is not None and redacted(word) == word
    return _VERBS.fullmatch(word) is not None


def _hashed(value: str, key: bytes) -> str:
    made = hmac.new(key, value.encode(errors="surrogateescape"), hashlib.sha256)
    return f"hidden:{made.hexdigest()[:10]}"
