"""The colors of pages, charts, videos and the labeling window, in light and in dark mode.

Success is blue and failure is orange everywhere (after Okabe and Ito): color-blind people can tell them apart. Orange
has no other meaning than failure and alarm, so other curves have the remaining colors. All text has a contrast of at
least 4.5 to each of the three backgrounds, which are the first colors.
"""

LIGHT = {
    "back": "#f6f7f9",
    "card": "#ffffff",
    "hover": "#eceff3",
    "line": "#d5dae1",
    "text": "#1b2027",
    "muted": "#56606d",
    "link": "#1c5f9e",
    "success": "#0067a5",
    "failure": "#a64b00",
    "none": "#c3cad3",
    "series-2": "#a8508a",
    "series-3": "#00805f",
    "series-4": "#8c7000",
    "series-5": "#6b7480",
}
DARK = {
    "back": "#15181c",
    "card": "#1b1f24",
    "hover": "#262b32",
    "line": "#39414b",
    "text": "#dfe3e8",
    "muted": "#98a2ae",
    "link": "#7cb8f0",
    "success": "#56b0e8",
    "failure": "#e8983c",
    "none": "#4a5460",
    "series-2": "#dc92c2",
    "series-3": "#35c297",
    "series-4": "#e8d84a",
    "series-5": "#aab4c0",
}
BACKGROUNDS, TEXTS = ("back", "card", "hover"), ("text", "muted", "link", "success", "failure")
SERIES = ("success", "series-2", "series-3", "series-4", "series-5")  # of curves, in this order


def variables(colors: dict[str, str]) -> str:
    """The colors as CSS custom properties."""
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def rgb(color: str) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255."""
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue
