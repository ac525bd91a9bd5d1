"""A secret never survives; what only sounds like one does."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.format.command import stored_command
from advisor.collectors.hooks.redaction import HASHED, HIDDEN, redacted, redacted_json

KEY = bytes(32)
_PARTS = (
    "password", "passwd", "pwd", "passphrase", "secret", "token", "api_key", "api-key",
    "apiKey", "access-key", "credential", "credentials", "auth_token", "private_key",
    "API_KEY", "TOKEN", "PASSWORD",
)  # fmt: skip
_BEFORE = ("", "db_", "my-", "hf_", "AWS_", "logger.", "+wandb.")
NAMES = st.tuples(st.sampled_from(_BEFORE), st.sampled_from(_PARTS)).map("".join)
# Nothing that is a number or a flag, and nothing that stands in what is around it.
_SIGNS = string.ascii_letters + string.digits + "!#$%^*_+~?."
SECRETS = st.text(_SIGNS, min_size=6, max_size=40).filter(
    lambda text: (
        text[0].isalpha()
        and any(sign.isupper() for sign in text)
        and not any(text in name for name in (*_PARTS, HIDDEN))
    )
)
AWS = st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map("AKIA".__add__)
LONG = st.text(string.ascii_letters + string.digits, min_size=24, max_size=40)
ISSUED = st.one_of(
    AWS,
    LONG.map("hf_".__add__),
    LONG.map("ghp_".__add__),
    LONG.map(lambda text: "sk-" + text + "7"),
    st.tuples(LONG, LONG, LONG).map(lambda parts: "eyJ" + ".".join(parts)),
)


@given(NAMES, SECRETS)
def test_what_is_given_to_a_secrets_name_never_survives(name: str, secret: str) -> None:
    for text in (f"bad {name}: {secret}", f"{name} = {secret}!", f"a {name}='{secret}' b"):
        assert secret not in redacted(text)
    assert secret not in json.dumps(redacted_json({"a": [{name: secret}]}))


OPTIONS = st.from_regex(r"--?[a-z][a-z_-]{0,12}", fullmatch=True)


@given(OPTIONS, SECRETS)
def test_no_value_of_an_option_survives_but_those_of_the_list(option: str, secret: str) -> None:
    """Whatever it is called: ``-p``, ``--pw`` and ``--login`` are on no list of secret names."""
    for words in (
        ["python", "train.py", option, secret, "--lr", "0.1"],
        ["train.py", f"{option}={secret}"],
        ["train.py", f"-p{secret}x1"],
        ["env", f"{option.strip('-')}={secret}", "python", "train.py"],
        ["sh", "-c", f"python train.py {option} {secret} --lr 0.1"],
        ["train.py", secret],
        ["train.py", "--json", json.dumps({option: secret, "n": 1})],
        ["train.py", option, f"https://{secret}@host/x?sig={secret}"],
        ["torchrun", "--nproc-per-node", "2", "train.py", option, f"a {secret}"],
    ):
        kept = stored_command(words, KEY)
        assert len(kept) == len(words)
        if not re.fullmatch(_SHORT_WORD, secret) or words[-1] == "train.py":
            assert not any(secret in word for word in kept), (words, kept)
        assert stored_command(kept, KEY) == kept


# What a model or an optimizer may be called, under the options that say so.
_SHORT_WORD = r"[A-Za-z][\w.-]{0,39}"


@given(OPTIONS, st.lists(SECRETS, min_size=2, max_size=2, unique=True))
def test_equal_values_have_equal_hashes_in_a_store_and_others_in_another(
    option: str, values: list[str]
) -> None:
    one, same, other = (
        stored_command(["train.py", f"--x{option}", value], KEY)[-1]
        for value in (values[0], values[0], values[1])
    )
    assert one == same
    elsewhere = stored_command(["train.py", f"--x{option}", values[0]], b"another store's")[-1]
    if HASHED.fullmatch(one):
        assert one not in (other, elsewhere)


@given(st.sampled_from(["postgres", "https", "s3", "mongodb+srv"]), SECRETS)
def test_a_password_in_an_address_never_survives(scheme: str, secret: str) -> None:
    secret = secret.replace("?", "").replace("#", "") + "X"
    for url in (
        f"{scheme}://user:{secret}@host:5432/db",
        f"{scheme}://:{secret}@host",
        f"{scheme}://host/a/b?sv=1&sig={secret}",
        f"{scheme}://host/a/b?X-Goog-Signature={secret}#{secret}",
        f"https://{secret}@host/db",
        f"https://host/services/webhook/{secret}",
    ):
        shown = redacted(f"see {url} there")
        assert secret not in shown
        assert "host" in shown


def test_a_link_of_a_cluster_is_no_password() -> None:
    cluster = "8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps"
    assert redacted(f"write e.g. {cluster}") == f"write e.g. {cluster}"
    assert "secret" not in redacted("ftp user:secret@host")


@given(ISSUED, st.sampled_from(["{}", "--x={}", "a {} b", "'{}'", "https://h/{}/x", "x={}&y=1"]))
def test_a_key_is_known_by_its_form_whatever_it_is_called(key: str, form: str) -> None:
    assert key not in redacted(form.format(key))


@given(ISSUED, st.binary(max_size=6))
def test_headers_and_private_keys(key: str, tail: bytes) -> None:
    assert key not in redacted(f'-H "Authorization: Bearer {key}"')
    pem = f"-----BEGIN RSA PRIVATE KEY-----\n{key}\n{tail.hex()}\n-----END RSA PRIVATE KEY-----"
    assert redacted(f"a {pem} b") == f"a {HIDDEN} b"


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-u", "train.py", "--tokens", "2048", "--key-dim", "64", "--max-tokens=512"],
        ["train.py", "--num_key_value_heads", "8", "--use-amp", "--lr", "1e-3", "--out"],
        ["train.py", "--device", "cuda:0", "--optimizer=adamw", "--model", "gpt2", "-b", "--amp"],
        ["torchrun", "--nproc-per-node", "2", "--standalone", "src/train.py", "--epochs", "3"],
        ["accelerate", "launch", "train.py", "trainer.max_epochs=3", "--gpus", "0", "1"],
        ["python", "-m", "pkg.train", "--betas", "0.9", "0.95", "--use-auth-token", "true"],
    ],
)  # fmt: skip
def test_what_the_advisor_uses_is_kept(words: list[str]) -> None:
    assert stored_command(words, KEY) == words


@pytest.mark.parametrize(
    "text",
    [
        "loader in range(args.epochs), digits_cnn.py:77",
        "sorted(found, key=len) in train.py:12",
        "aten::key::token",
        "a reading failed: OSError(5, 'Input/output error')",
        "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
    ],
)
def test_our_own_texts_survive(text: str) -> None:
    assert redacted(text) == text


@given(st.lists(st.text(max_size=30), max_size=8))
def test_any_words_can_be_looked_at_and_hiding_twice_changes_nothing(words: list[str]) -> None:
    once = stored_command(words, KEY)
    assert len(once) == len(words)
    assert stored_command(once, KEY) == once
    assert [redacted(redacted(word)) for word in words] == [redacted(word) for word in words]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON)
def test_numbers_and_structure_are_kept(value: object) -> None:
    def numbers(part: object) -> list[object]:
        if isinstance(part, dict):
            return [len(part), *(n for each in part.values() for n in numbers(each))]
        if isinstance(part, list):
            return [len(part), *(n for each in part for n in numbers(each))]
        return [] if isinstance(part, str) else [part]

    assert numbers(redacted_json(value)) == numbers(value)


@pytest.mark.parametrize("unit", ["a-", "a.", "key=", "eyJ-", "sk-", "x://a:", "a:", "'", "a@b:"])
def test_a_word_of_any_length_takes_linear_time(unit: str) -> None:
    """A search that is not would look at this text for hours."""
    text = "key" + unit * (120_000 // len(unit))
    assert redacted(text)
    assert stored_command(["train.py", text], KEY)
