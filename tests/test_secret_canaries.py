"""Planted secrets: none is in an output, a stored file or a log of any verb.

They stand on the command line, in the script's source, in its environment and in what it raises;
each is a word of its own that is looked for byte by byte.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import ROOT, advisor
from conftest import InProcess

from advisor.advice.script import SourceScript
from advisor.report.page import _without_source

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SIGNS = "q7Zx4Kf9Lm2Tb8Rw5Yd1"
Words = Callable[[str], list[str]]
# On the command line, by their kind; the secret's own words in place of X.
PLANTED: dict[str, Words] = {
    "one letter": lambda x: ["-p", x],
    "one letter, no space": lambda x: [f"-p{x}"],
    "short name": lambda x: ["--pw", x],
    "assigned": lambda x: [f"--password={x}"],
    "user and password": lambda x: ["--login", f"me:{x}"],
    "plain words": lambda x: ["--note", f"the word is {x}"],
    "Azure's signature": lambda x: ["--data", f"https://a.blob.core.windows.net/c?sv=1&sig={x}"],
    "Google's signature": lambda x: ["--from", f"https://g.com/b/o?X-Goog-Signature={x}"],
    "Amazon's signature": lambda x: ["--s3", f"https://b.s3.amazonaws.com/k?X-Amz-Signature={x}"],
    "Slack's webhook": lambda x: ["--notify", f"https://hooks.slack.com/services/T0/B0/{x}"],
    "Discord's webhook": lambda x: ["--ping", f"https://discord.com/api/webhooks/1/{x}"],
    "Teams' webhook": lambda x: ["--call", f"https://x.webhook.office.com/webhookb2/{x}"],
    "token before a host": lambda x: ["--repo", f"https://{x}@github.com/me/r.git"],
    "password before a host": lambda x: ["--db", f"postgres://me:{x}@host/db"],
    "fragment": lambda x: ["--url", f"https://host/a#{x}"],
    "path": lambda x: ["--out", f"/data/{x}/out"],
    "positional": lambda x: [x],
    "Hydra's override": lambda x: [f"+wandb.key={x}"],
    "JSON": lambda x: ["--config", json.dumps({"a": {"b": x}})],
    "YAML": lambda x: ["--yaml", f"a: 1\nb: {x}\n"],
    "header": lambda x: ["-H", f"Authorization: Bearer {x}"],
    "AWS key": lambda x: ["--id", f"AKIA{x.upper()}"],
    "Hugging Face token": lambda x: ["--hub", f"hf_{x}"],
    "GitHub token": lambda x: ["--gh", f"ghp_{x}"],
    "JWT": lambda x: ["--who", f"eyJhbGciOiJI.eyJ{x}.{x}"],
    "private key": lambda x: ["--pem", f"-----BEGIN PRIVATE KEY-----\n{x}\n"],
    "under a harmless name": lambda x: ["--batch-size", x],
    "under a model's name": lambda x: ["--model", f"a9-{x}"],
}
SOURCE = """
import sys
sys.path.insert(0, {root!r})
import os, warnings
import torch
from torch.utils.data import DataLoader, TensorDataset

def login(key): return key
login(key="{source}"); model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.zeros(64, 8), torch.zeros(64, 1))
def stream(name): return DataLoader(data, batch_size=8)
for epoch in range(6):
    for x, y in stream("{loop}"):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
raise SystemExit(3)
"""


def secret(number: int) -> str:
    """A word that stands nowhere else."""
    return f"C{number:02}{SIGNS[number % 5 :]}{number:02}"


Ask = Callable[..., str]


@pytest.fixture
def ask(tmp_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Record in a process of its own, ask in this one; return all that is said."""
    monkeypatch.delenv("ADVISOR_RUNS", raising=False)
    for kind in ("cache", "data"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))

    def said(*verb: str, **environment: Any) -> str:
        if verb[0] == "profile":
            done = advisor(tmp_path, *verb, **environment)
        else:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            done = in_process(*verb, cwd=tmp_path)
        return done.stdout + done.stderr

    return said


@linux
def test_no_planted_secret_is_said_or_stored(tmp_path: Path, ask: Ask) -> None:
    assert len(PLANTED) + 3 >= 30
    secrets = {kind: secret(number) for number, kind in enumerate(PLANTED)}
    words = [word for kind, make in PLANTED.items() for word in make(secrets[kind])]
    secrets |= {"source": secret(50), "loop": secret(51), "environment": secret(52)}
    script = tmp_path / "train.py"
    script.write_text(SOURCE.format(root=ROOT, source=secrets["source"], loop=secrets["loop"]))
    verbs = (
        ("profile", "train.py", "--epochs", "3", *words),
        ("runs", "list"),
        ("runs", "list", "--json"),
        ("runs", "show", "last"),
        ("advise", "--explain", "1", "--total-steps", "1000"),
        ("recommend", "--json", "--total-steps", "1000", "--cloud", "aws"),
        ("export", "--to", "torchrun", "--total-steps", "1000", "--cloud", "aws", "-o", "out/"),
        ("report", "--total-steps", "1000", "--cloud", "aws", "-o", "page.html"),
    )
    said = [(verb[0], ask(*verb, WANDB_API_KEY=secrets["environment"])) for verb in verbs]
    listed = said[2][1]  # as JSON: a table leaves out what its width has no room for
    assert "--epochs 3" in listed
    assert "hidden:" in listed
    assert (tmp_path / "page.html").exists(), dict(said)["report"]
    assert "ARG_P" in dict(said)["export"]
    assert not places_of(secrets, said, tmp_path, script)
    keys = list(tmp_path.rglob(".key"))
    assert [oct(os.stat(p).st_mode & 0o777) for p in keys] == ["0o600"]


def places_of(
    secrets: dict[str, str], said: list[tuple[str, str]], folder: Path, source: Path
) -> set[tuple[str, str]]:
    """Every secret that is in an output, or in a file or the name of one, but the source's own."""
    stored = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p != source}
    return {
        (kind, where)
        for kind, one in secrets.items()
        for spelled in (one, one.upper())
        for where in [
            *(name for name, text in said if spelled in text),
            *(
                str(p)
                for p, data in stored.items()
                if spelled.encode() in data or spelled in str(p)
            ),
        ]
    }


@linux
def test_no_secret_of_a_notebook_is_said_or_stored(tmp_path: Path, ask: Ask) -> None:
    kinds = ("bearer", "literal", "environment", "loop", "markdown", "output")
    secrets = {kind: secret(60 + number) for number, kind in enumerate(kinds)}
    source = SOURCE.format(root=ROOT, source=secrets["literal"], loop=secrets["loop"])
    cells = [
        f"!curl -H 'Authorization: Bearer {secrets['bearer']}' https://host/data",
        f"%env HF_TOKEN={secrets['environment']}",
        source,
    ]
    shown = {"output_type": "stream", "text": [secrets["output"]]}
    code = [{"cell_type": "code", "source": one, "outputs": [shown]} for one in cells]
    text = {"cell_type": "markdown", "source": f"the key is {secrets['markdown']}"}
    book = tmp_path / "train.ipynb"
    book.write_text(json.dumps({"cells": [text, *code], "metadata": {}, "nbformat": 4}))
    (tmp_path / "tmp").mkdir()
    verbs = (
        ("profile", "train.ipynb", "--epochs", "3"),
        ("runs", "show", "last"),
        ("advise", "--explain", "1", "--total-steps", "1000"),
        ("export", "--to", "torchrun", "--total-steps", "1000", "--cloud", "aws", "-o", "out/x"),
        ("report", "--total-steps", "1000", "--cloud", "aws", "-o", "page.html"),
    )
    said = [(verb[0], ask(*verb, TMPDIR=str(tmp_path / "tmp"))) for verb in verbs]
    assert (tmp_path / "page.html").exists(), dict(said)["report"]
    assert " train.py --epochs 3" in (tmp_path / "out" / "x").read_text()
    assert "jupyter nbconvert --to script train.ipynb" in dict(said)["export"]
    assert not places_of(secrets, said, tmp_path, book)


def test_a_patch_has_no_line_that_it_does_not_change(tmp_path: Path) -> None:
    """A source line beside the change is nobody's business; on a page no line stands at all."""
    path = tmp_path / "train.py"
    path.write_text("login(key='CANARY')\nloader = DataLoader(data)\nlogin(key='CANARY')\n")
    script = SourceScript(path, path.read_text(), ast.parse(path.read_text()))
    text = script.with_arguments(script.named("DataLoader")[0], persistent_workers="True")
    assert "+loader = DataLoader(data, persistent_workers=True)" in text
    assert "CANARY" not in text
    advised = {"advice": [{"how": {"kind": "lines", "text": text}, "change": "x"}]}
    (one,) = _without_source(advised)["advice"]
    assert "DataLoader" not in one["how"]["text"]
    assert "advisor advise --explain 1" in one["how"]["text"]
