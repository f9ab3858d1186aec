"""Requests for schedules, as text: a policy, and its limits and times.

zb-h1    zb-h1(max-live=4)    search(max-bytes=512MiB, times=times.json, seconds=30)
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NoReturn

from pathways.dialect.spelling import did_you_mean
from pathways.passes.analysis.links import read_link
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError, read_bytes
from pathways.passes.schedule.policies.registry import PROGRAM, SEARCH, is_known, unknown_policy, wants_halves


class RequestError(ValueError):
    """Error of a request that cannot be read; the message has the reason."""


@dataclasses.dataclass(frozen=True)
class ScheduleRequest:
    """A policy with its options; `str` writes the text that `read_request` reads.

    Attributes:
      max_live: on how many microbatches each stage may work at once, until its backward or the half of the
        weights is done; 0 for any number.
      max_pending: for how many microbatches a stage may have done the first half of a backward but not the
        half of the weights; 0 for any number.
      max_bytes: how many bytes of microbatches may be alive at once on a slice, over all its devices; 0 for
        any amount.
      times: how long actions take: a JSON file of durations, `flops` for estimates, or `units` for a unit for
        each placed call; empty for `flops` where a search needs times, and for patterns that do not.
      latency: of links between slices, such as `5us`; empty for none.
      bandwidth: of links between slices, such as `10GB/s`; empty for no limit.
      seconds: how long a search may take; 0 for no limit.
      iterations: after how many steps a search ends; 0 for as many as suit the size of the pipeline.
      seed: of the random numbers of a search.
      solver: a solver that searches as well: `cp-sat`, or empty.
      recompute: whether the half of the weights may repeat cheap work, so that less is passed on.
    """

    policy: str = PROGRAM
    max_live: int = 0
    max_pending: int = 0
    max_bytes: int = 0
    times: str = ""
    latency: str = ""
    bandwidth: str = ""
    seconds: float = 0.0
    iterations: int = 0
    seed: int = 0
    solver: str = ""
    recompute: bool = False

    @property
    def has_limits(self) -> bool:
        """Whether it bounds live values."""
        return bool(self.max_live or self.max_pending or self.max_bytes)

    @property
    def has_halves(self) -> bool:
        """Whether backwards are to be cut in halves."""
        return wants_halves(self.policy)

    def with_absolute_times(self) -> ScheduleRequest:
        """Returns the request with the absolute path of its file of times, which os.chdir does not change."""
        if self.times in ("", FLOPS, UNITS):
            return self
        path = str(Path(self.times).absolute())
        # No request can have a path with these characters.
        return self if re.search(r"[(),]", path) else dataclasses.replace(self, times=path)

    def __str__(self) -> str:
        options = [
            f"{_written(field.name)}={str(value).lower() if isinstance(value, bool) else value}"
            for field in dataclasses.fields(self)[1:]
            if (value := getattr(self, field.name)) != field.default
        ]
        return self.policy + (f"({', '.join(options)})" if options else "")


_OF_SEARCH = ("seconds", "iterations", "seed", "solver")
_SOLVERS = ("cp-sat",)


def read_request(text: str) -> ScheduleRequest:
    """Reads a schedule as a program names it.

    Raises:
      RequestError: an unknown policy or option, or a value that does not fit it.
    """
    written = re.fullmatch(r"\s*([^\s()]*)\s*(?:\(([^()]*)\))?\s*", text)
    if written is None:
        raise RequestError(f"expected a policy, or one with options such as zb-h1(max-live=4), got '{text}'")
    policy, options = written[1], written[2] or ""
    if not is_known(policy):
        raise RequestError(unknown_policy(policy))
    fields = {_written(field.name): field for field in dataclasses.fields(ScheduleRequest)[1:]}
    values: dict[str, Any] = {}

    def fail(message: str) -> NoReturn:
        raise RequestError(f"'{text}': option {message}")

    for option in filter(None, (part.strip() for part in options.split(","))):
        name, equals, value = (part.strip() for part in option.partition("="))
        if name not in fields:
            hint = did_you_mean(name, fields) or f"; there are {', '.join(fields)}"
            fail(f"'{name}' is unknown{hint}")
        if not equals or not value:
            fail(f"'{name}' needs a value, such as {name}={_EXAMPLES[name]}")
        if fields[name].name in values:
            fail(f"'{name}' is given twice")
        if name in _OF_SEARCH and policy != SEARCH:
            fail(f"'{name}' is for '{SEARCH}', not for '{policy}'")
        values[fields[name].name] = _value(name, value, fail)
    for name in ("latency", "bandwidth"):
        if name in values and values.get("times", FLOPS) == FLOPS:
            fail(f"'{name}' needs times to go with it, such as times=times.json")
    return ScheduleRequest(policy, **values)


def policy_or_file(text: str) -> tuple[str, str]:
    """Splits a text into a policy with its options, or else a schedule file: a path that ends in `.csv`.

    Raises:
      RequestError: it is neither.
    """
    if text.endswith(".csv"):
        return "", text
    try:
        return str(read_request(text).with_absolute_times()), ""
    except RequestError as error:
        raise RequestError(f"neither a policy nor a .csv file: {error}") from None


_EXAMPLES = {
    "max-live": "4",
    "max-pending": "2",
    "max-bytes": "512MiB",
    "times": "times.json",
    "latency": "5us",
    "bandwidth": "10GB/s",
    "seconds": "10",
    "iterations": "500",
    "seed": "1",
    "solver": "cp-sat",
    "recompute": "true",
}


def _value(name: str, text: str, fail: Any) -> Any:
    match name:
        case "times":
            return text
        case "solver":
            return text if text in _SOLVERS else fail(f"'solver' must be {', '.join(_SOLVERS)}, got '{text}'")
        case "recompute":
            bools = {"true": True, "false": False}
            return bools[text] if text in bools else fail(f"'recompute' must be true or false, got '{text}'")
        case "max-bytes" | "latency" | "bandwidth":
            try:
                if name == "max-bytes":
                    return read_bytes(text, name)
                read_link(*((text, None) if name == "latency" else (None, text)))
                return text
            except TimesError as error:
                fail(f"'{name}' {str(error).partition(': ')[2]}")
        case "seconds":
            if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) is None or not float(text):
                fail(f"'{name}' must be a number of seconds above 0, got '{text}'")
            return float(text)
    if re.fullmatch(r"[0-9]{1,9}", text) is None or (name != "seed" and not int(text)):
        fail(f"'{name}' must be a number from {0 if name == 'seed' else 1} up, got '{text}'")
    return int(text)


def _written(name: str) -> str:
    return name.replace("_", "-")
