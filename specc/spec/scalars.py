"""Scalars by the core schema of YAML 1.2.2 (section 10.3.2); ambiguous and too large numbers are refused."""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

MAX_DIGITS = 40

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})


class BadScalar(ValueError):
    """A scalar that reads as a number but has no usable value; carries the parts of a diagnostic."""

    def __init__(self, code: str, message: str, label: str, help: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.label = label
        self.help = help


def resolve_plain(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises BadScalar (SPC009, SPC015)."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _float(text)
    if _INFINITY.fullmatch(text):
        return -math.inf if text.startswith("-") else math.inf
    if text in _NAN:
        return math.nan
    return text


def resolve_tagged(tag: str, text: str) -> Scalar:
    """The value of a scalar with a core tag such as `int`. Raises LookupError where it is none, or lies."""
    if tag == "str":
        return text
    value = resolve_plain(text)
    if tag == "null" and value is None:
        return None
    if tag == "bool" and isinstance(value, bool):
        return value
    if tag == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if tag == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise LookupError(f"!!{tag} {text}")


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    if len(digits) > MAX_DIGITS:
        raise BadScalar(
            "SPC015",
            f"this number has {len(digits)} digits",
            "too large",
            "no value of a spec needs more than 19",
        )
    if digits.startswith("0o"):
        return int(digits[2:], 8)
    if digits.startswith("0x"):
        return int(digits[2:], 16)
    if len(digits) > 1 and digits.startswith("0"):
        raise BadScalar(
            "SPC009",
            f"`{text}` is ambiguous: older YAML reads a leading zero as octal",
            "leading zero",
            f"write {int(text)} for the decimal number, 0o… for octal, or quotes for text",
        )
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadScalar(
            "SPC015",
            "this number is beyond the range of a float64",
            "too large",
            "write a smaller number: float64 ends at 1.8e308",
        )
    return value
