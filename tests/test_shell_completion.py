"""What a shell offers behind an option: names that are known here, words of a choice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).parent / "golden"


def completed(words: str) -> list[str]:
    """Return what bash offers after these words."""
    environ = os.environ | {
        "_ADVISOR_COMPLETE": "complete_bash", "COMP_WORDS": words, "ADVISOR_RUNS": str(RUNS),
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }  # fmt: skip
    line = "from advisor.cli import main; import sys; sys.argv = ['advisor']; main()"
    done = subprocess.run(
        [sys.executable, "-c", line], env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rec", "recommend"),
        ("predict --model llama-3", "llama-3.1-8B"),
        ("recommend --model Qwen/", "Qwen/Qwen3-8B"),
        ("recommend --gpus H1", "H100"),
        ("recommend --gpus A100,H2", "A100,H200-SXM-141GB"),
        ("predict --gpu RTX-A6", "RTX-A6000"),
        ("recommend --cloud aws,hy", "aws,hyperstack"),
        ("recommend --region us-e", "us-east-1"),
        ("predict --on g5.x", "g5.xlarge"),
        ("advise --on he", "here"),
        ("predict --precision f", "fp16"),
        ("predict --stack torcht", "torchtitan"),
        ("export --to sk", "skypilot"),
        ("recommend --run run-sch", "run-schema-1"),
        ("report run-sch", "run-schema-1"),
    ],
)
def test_a_shell_completes(words: str, offered: str) -> None:
    begun = words.rpartition(" ")[2]
    found = completed(f"advisor {words}")
    assert all(one.startswith(begun) for one in found)
    assert offered in found


def test_what_is_not_known_offers_nothing() -> None:
    assert not completed("advisor predict --model no-such-model")
    assert not completed("advisor predict --layers 1")
