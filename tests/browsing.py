"""Looking at colours as a browser tells them."""

from __future__ import annotations


def contrast(one: str, other: str) -> float:
    """The WCAG contrast of two `rgb(...)` colours, 1 to 21."""
    lights = []
    for colour in (one, other):
        parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)
