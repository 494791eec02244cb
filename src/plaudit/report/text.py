"""Numbers as text, the same on pages and in tables."""

import math
from collections.abc import Sequence

from plaudit.judges.stats import Interval


def format_percent(fraction: float) -> str:
    """With more digits near 0 and 1, where good judges are: 99.97%, 0.04%, 85.0%; "-" for NaN."""
    if math.isnan(fraction):
        return "-"
    distance = min(fraction, 1 - fraction)
    return f"{fraction:.0%}" if distance <= 0 else f"{fraction:.1%}" if distance >= 0.001 else f"{fraction:.2%}"


def format_target(rate: float) -> str:
    """A round rate that somebody chose: 20%, 0.5%."""
    return f"{100 * rate:.3g}%"


def format_interval(rate: Interval) -> str:
    """A rate with its confidence interval: 1.2% (0.8% to 2.0%)."""
    if math.isnan(rate.value):
        return "-"
    return f"{format_percent(rate.value)} ({format_percent(rate.low)} to {format_percent(rate.high)})"


def format_short_interval(rate: Interval) -> str:
    """93% (70 to 99), 0.4% (0 to 1.4): several of them side by side."""
    low, high = (format_share(end).removesuffix("%") for end in (rate.low, rate.high))
    return f"{format_share(rate.value)} ({low} to {high})"


def format_share(rate: float) -> str:
    """85%; with more digits near 0 and 1."""
    return f"{rate:.0%}" if 0.1 <= rate <= 0.9 else format_percent(rate)


def format_number(value: float) -> str:
    """Four decimals; "-" for NaN."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def format_frames(frames: float) -> str:
    """1 frame, 2.5 frames; "-" for NaN."""
    if math.isnan(frames):
        return "-"
    return f"{frames:g} frame" if frames == 1 else f"{frames:.3g} frames"


def format_frames_interval(interval: Interval) -> str:
    """3 frames (1 to 8); "or more" where there are too few episodes for an upper end."""
    if math.isnan(interval.value):
        return "-"
    high = f" to {interval.high:.3g}" if math.isfinite(interval.high) else " or more"
    return f"{format_frames(interval.value)} ({interval.low:.3g}{high})"


def format_duration(seconds: float) -> str:
    """48 s, 2 min 05 s, 3 h 10 min."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_count(count: int, noun: str) -> str:
    """1 episode, 2,000 episodes."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_ids(ids: Sequence[int], most: int = 12) -> str:
    """The last few of many: 3, 4, 9 and 20 more."""
    shown = ", ".join(map(str, ids[-most:]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


def sentence_case(words: str) -> str:
    """A message as a sentence of a page."""
    return f"{words[0].upper()}{words[1:]}."
