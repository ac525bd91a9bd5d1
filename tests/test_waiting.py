"""A sign of life on a terminal, nothing in a pipe."""

import io
import sys
import threading

import pytest

from advisor.cli import terminal as module
from advisor.cli.terminal import waiting, while_waiting


class Terminal(io.StringIO):
    """A terminal that notes when something is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.is_shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "pricing" in text:
            self.is_shown.set()
        return super().write(text)


def test_a_terminal_is_told_what_takes_long() -> None:
    out = Terminal()
    with waiting("pricing", out=out, delay_s=0.0):
        assert out.is_shown.wait(30)


def test_what_is_done_soon_shows_nothing() -> None:
    out = Terminal()
    with waiting("pricing", out=out, delay_s=3600.0):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_pipe_and_a_program_are_told_nothing(is_quiet: bool) -> None:
    out = Terminal() if is_quiet else io.StringIO()
    with waiting("pricing", out=out, delay_s=0.0, is_quiet=is_quiet):
        threading.Event().wait(0.05)
    assert out.getvalue() == ""


def test_an_error_goes_on_to_whoever_asked() -> None:
    with pytest.raises(KeyError), waiting("pricing", out=Terminal(), delay_s=0.0):
        raise KeyError("x")


def test_what_a_verb_prints_comes_when_it_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "DELAY_S", 0.0)

    @while_waiting("pricing")
    def verb(word: str) -> None:
        """Say a word."""
        sys.stdout.write(f"{word}\n")
        assert capsys.readouterr().out == ""
        if word == "bad":
            raise KeyError(word)

    verb("good")
    assert capsys.readouterr().out == "good\n"
    with pytest.raises(KeyError):
        verb("bad")
    assert capsys.readouterr().out == "bad\n"
    assert verb.__doc__ == "Say a word."
