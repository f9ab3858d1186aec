"""Plain data as records: what is read, and the one sentence for what is not."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from pathways.dialect.plain_data import Count, PlainDataError, Symbol, check_fields, parse_json, read_record

Names = Annotated[int | list[str], msgspec.Meta(description="a number, or a list of names")]


class Wheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Symbol
    spokes: Count = 1

    def __post_init__(self) -> None:
        if self.name == "square":
            raise ValueError("a wheel is round")


class Cart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wheels: tuple[Wheel, ...]
    hosts: Names | None = None
    weights: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_fields(self)


def test_plain_data_becomes_records():
    value = parse_json(b'{"wheels": [{"name": "w0"}, {"name": "w1", "spokes": 8}], "weights": {"w0": 2}}')
    assert read_record(value, Cart) == Cart((Wheel("w0"), Wheel("w1", 8)), None, {"w0": 2.0})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object"),
        ({}, "wheels: missing"),
        ({"wheels": 2}, "wheels = 2: expected a list"),
        ({"weels": []}, "weels: unknown key; did you mean wheels?"),
        ({"x\x1b": 1}, r'"x\u001b": unknown key; expected some of wheels, hosts, weights'),
        ({"wheels": [], "color": 1}, "color: unknown key; wheels are not painted"),
        ({"wheels": [{"name": "a"}, {"name": "b c"}]}, 'wheels[1].name = "b c": expected a name of letters'),
        ({"wheels": [{"name": "a", "spokes": True}]}, "wheels[0].spokes = true: expected a whole number of"),
        ({"wheels": [{"name": "a", "spokes": 2.0}]}, "wheels[0].spokes = 2.0: expected a whole number of"),
        ({"wheels": [{"name": "square"}]}, "wheels[0]: a wheel is round"),
        ({"wheels": [], "hosts": ["a", 1]}, 'hosts = ["a", 1]: expected a number, or a list of names'),
        ({"wheels": [{"name": "\ud800"}]}, r'wheels[0].name = "\ud800": expected a name of letters'),
        ({"wheels": [], "weights": {"a": 1, "b c": "x"}}, 'weights."b c" = "x": expected a number'),
    ],
)
def test_plain_data_of_another_type_is_one_sentence(value: Any, message: str):
    with pytest.raises(PlainDataError) as caught:
        read_record(value, Cart, {"color": "wheels are not painted"})
    assert str(caught.value).startswith(message)
    assert str(caught.value).isprintable()


def test_plain_data_of_a_caller_is_checked():
    with pytest.raises(ValueError, match=r"^hosts='x': expected a number, or a list of names$"):
        Cart((), hosts="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b'{"a": NaN}', "not JSON: NaN is not a number"),
        (b'{"a": 1, "a": 2}', "not JSON: a key occurs twice in one object"),
        (b"\xff", "not UTF-8 text: byte 0 is 0xff"),
        (b"9" * 10_000, "not JSON: "),
    ],
)
def test_plain_data_that_is_no_json_is_refused(text: bytes, message: str):
    with pytest.raises(PlainDataError, match=f"^{message}"):
        parse_json(text)
