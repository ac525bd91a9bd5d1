"""Quantities: what is printed can be read again, and nonsense is one clear error everywhere."""

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import quantities as q
from advisor.errors import UsageError

Parse = Callable[[str], float]
PARSERS: dict[str, Parse] = {
    "duration in hours": q.parse_hours,
    "duration in seconds": q.parse_seconds,
    "size": q.parse_bytes,
    "rate": q.parse_rate,
    "share": q.parse_share,
    "money": q.parse_usd,
    "count": q.parse_count,
}
# Printer and reader of each quantity, and a range that people meet.
PAIRS: dict[str, tuple[Callable[[float], str], Parse, float, float]] = {
    "hours": (q.hours_text, q.parse_hours, 1e-6, 1e6),
    "seconds": (q.seconds_text, q.parse_seconds, 1e-5, 1e9),
    "size": (q.size_text, q.parse_bytes, 1.0, 1e17),
    "rate": (q.rate_text, q.parse_rate, 1.0, 1e13),
    "share": (q.share_text, q.parse_share, 1e-4, 1.0),
    "money": (q.usd_text, q.parse_usd, 1e-4, 1e9),
    "count": (q.count_text, q.parse_count, 1.0, 1e16),
}


def printed_precision(text: str, value: float) -> float:
    """Half a unit of the last digit that was printed, in the quantity's own unit."""
    number = re.search(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e-?[0-9]+)?", text)
    assert number is not None
    word = number[0].replace(",", "")
    mantissa, _, exponent = word.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return 0.5 * last * value / float(word)


@pytest.mark.parametrize("name", PAIRS)
@given(share=st.floats(0, 1))
def test_what_is_printed_is_read_again_to_the_printed_precision(name: str, share: float) -> None:
    show, parse, low, high = PAIRS[name]
    value = low * (high / low) ** share
    text = show(value)
    again = parse(text)
    assert abs(again - value) <= printed_precision(text, again) * (1 + 1e-9), text


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_parts_of_a_duration_add_up_exactly(days: int, hours: int, minutes: int, s: int) -> None:
    whole = 86_400 * days + 3600 * hours + 60 * minutes + s
    assert q.parse_seconds(f"{days}d{hours}h{minutes}m{s}s") == whole
    assert q.parse_seconds(f"{days} days {hours} h {minutes} min {s} sec") == whole


@pytest.mark.parametrize("text", ["90m", "1.5h", "1h30m", "1h 30m", "5400s", "1.5", "90 minutes"])
def test_one_and_a_half_hours_is_that_however_it_is_written(text: str) -> None:
    assert q.parse_hours(text) == 1.5
    assert q.parse_seconds(text) == 5400


@given(st.floats(0, 1e300))
def test_a_bare_number_means_one_thing_as_text_and_as_number(value: float) -> None:
    for parse in (q.parse_hours, q.parse_bytes, q.parse_rate, q.parse_usd, q.parse_count):
        assert parse(repr(value)) == parse(value) == value


@pytest.mark.parametrize("prefix", ["k", "M", "G", "T"])
def test_a_size_is_decimal_unless_it_says_binary(prefix: str) -> None:
    decimal = q.parse_bytes(f"1{prefix}B")
    assert q.parse_bytes(f"1{prefix}") == q.parse_bytes(f"1{prefix.lower()}b") == decimal
    assert q.parse_bytes(f"1{prefix}i") == q.parse_bytes(f"1{prefix}iB")
    assert math.log2(q.parse_bytes(f"1{prefix}iB")) == round(math.log10(decimal)) / 3 * 10


@given(st.integers(1, 10_000))
def test_eight_bits_are_a_byte(gigabits: int) -> None:
    for unit in ("Gbps", "Gbit/s", "gbps"):
        assert q.parse_rate(f"{gigabits}{unit}") * 8 == gigabits * 1e9


@pytest.mark.parametrize("text", ["100mb/s", "25Gb/s", "1b/s"])
def test_a_rate_in_b_could_be_either_and_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read") as refused:
        q.parse_rate(text)
    assert "bits or bytes" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "count"),
    [("15B", 15e9), ("2T", 2e12), ("350M", 350e6), ("9e6", 9e6), ("1,500k", 1.5e6), ("12", 12.0)],
)
def test_counts_have_scales(text: str, count: float) -> None:
    assert q.parse_count(text) == count


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text(max_size=12) | st.from_regex(r"\A[0-9.,]{1,6} ?[a-zµ%$/]{0,4}\Z"))
def test_any_text_is_a_finite_quantity_or_a_usage_error_with_a_hint(name: str, text: str) -> None:
    try:
        assert 0 <= PARSERS[name](text) < math.inf
    except UsageError as error:
        assert error.hint  # noqa: PT017
        assert "cannot read" in str(error)  # noqa: PT017


NONSENSE = [
    "", " ", "-3", "-3h", "-5GB", "-5%", "nan", "inf", "Infinity", "-inf", "1e999", "9" * 400,
    "9" * 100_000, "1e" + "9" * 60, "h", "1 lorry", "1,5", "1..5", "0x10", "\u0661\u0662", "1__0",
]  # fmt: skip


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: text[:12])
def test_nonsense_is_refused_in_one_short_line(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="cannot read") as refused:
        PARSERS[name](text)
    assert refused.value.hint
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "value", [-1.0, -1, math.nan, math.inf, -math.inf, 10**400, True, None, [], {}], ids=repr
)
def test_numbers_that_are_none_are_refused_as_text_is(name: str, value: object) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        PARSERS[name](value)  # type: ignore[arg-type]


def test_the_message_says_what_was_read_as_what_and_what_to_write() -> None:
    with pytest.raises(UsageError) as refused:
        q.parse_hours("1h30q", option="--deadline")
    assert str(refused.value) == "--deadline: cannot read '1h30q' as a duration"
    assert refused.value.hint == "use 90m, 1.5h or 1h30m"
    with pytest.raises(UsageError, match="it is negative"):
        q.parse_bytes("-5GB")


@pytest.mark.parametrize(
    "parse", [lambda t: q.parse_seconds(t, needs_unit=True),
              lambda t: q.parse_bytes(t, needs_unit=True)]
)  # fmt: skip
def test_where_a_bare_number_would_surprise_it_is_refused_but_for_zero(parse: Parse) -> None:
    assert parse("0") == 0
    with pytest.raises(UsageError) as refused:
        parse("64")
    assert "add a unit" in refused.value.hint


def test_a_share_above_one_needs_a_percent_sign_and_leave() -> None:
    assert q.parse_share("100%") == 1.0
    assert q.parse_share("250%", most=100.0) == 2.5
    for text, most in (("5", 100.0), ("150%", 1.0)):
        with pytest.raises(UsageError, match="as a share"):
            q.parse_share(text, most=most)


@given(st.floats(1e-6, 1e9))
def test_a_longer_duration_is_never_printed_in_a_smaller_unit(seconds: float) -> None:
    order = ["us", "ms", "s", "min", "h", "d"]
    shorter, longer = (q.seconds_text(s).split(" ")[1] for s in (seconds, 2 * seconds))
    assert order.index(shorter) <= order.index(longer)


def test_a_duration_that_rounds_up_to_the_next_unit_is_printed_in_it() -> None:
    """A second less a tenth of a millisecond was printed as 1,000 ms."""
    assert q.seconds_text(0.9996) == "1.00 s"
    assert q.seconds_text(0.9994) == "999 ms"
    assert q.seconds_text(119.97) == "2.00 min"
