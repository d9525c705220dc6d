"""How figures are written for people."""

from __future__ import annotations


def three_digits(value: float) -> str:
    """About three digits: 1,234 and 123 and 12.3 and 1.23."""
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f}"
