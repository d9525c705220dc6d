"""Types of command-line arguments: argparse says their names when a value does not fit."""

from __future__ import annotations

import math


def whole_number(text: str) -> int:
    """1 or more."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def whole_numbers(text: str) -> list[int]:
    """1 or more, separated by commas."""
    return [whole_number(part) for part in text.split(",")]


def seeds(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [int(part) for part in text.split(",")]


def positive_number(text: str) -> float:
    """Finite and above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value


whole_number.__name__ = "whole number of 1 or more"  # What argparse calls it in its messages.
whole_numbers.__name__ = "list of whole numbers of 1 or more"
seeds.__name__ = "list of whole numbers"
positive_number.__name__ = "number above 0"
