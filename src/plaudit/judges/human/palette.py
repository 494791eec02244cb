"""The colors of pages, charts, videos and the labeling window, in light and in dark mode; the style of the window.

Success is blue and failure is orange everywhere (after Okabe and Ito): color-blind people can tell them apart. Orange
has no other meaning than failure and alarm, so other curves have the remaining colors. All text has a contrast of at
least 4.5 to each of the three backgrounds, which are the first colors. The window is dark, calm for an hour of looking.
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


BACKGROUND, SURFACE, SURFACE_RAISED, BORDER = (DARK[name] for name in ("back", "card", "hover", "line"))
TEXT, TEXT_MUTED, TEXT_STRONG = DARK["text"], DARK["muted"], "#ffffff"
SUCCESS, FAILURE, UNLABELED = (DARK[name] for name in ("success", "failure", "none"))
WARNING = FAILURE
TIMELINE_SUCCESS, TIMELINE_FAILURE = "#33689c", "#8a5a2e"  # the same over large areas, quieter
CURVES = ("#ffffff", "#f2e35b", "#6fe0bd", "#d7a6ec")  # one a judge, readable on all three of the above


def label_color(value: float, success: str = SUCCESS, failure: str = FAILURE) -> str:
    """Color of a label: 1, 0 or NaN."""
    if value != value:
        return UNLABELED
    return success if value >= 0.5 else failure


STYLE = f"""
QWidget {{ background: {BACKGROUND}; color: {TEXT}; font-size: 14px; }}
QLabel {{ background: transparent; }}
QLabel#task {{ color: {TEXT_STRONG}; font-size: 22px; font-weight: 600; }}
QLabel#faint, QLabel#facts {{ color: {TEXT_MUTED}; }}
QLabel#heading {{ color: {TEXT_MUTED}; font-size: 12px; font-weight: 600; letter-spacing: 1px; }}
QLabel#counter {{ color: {TEXT_STRONG}; font-size: 17px; font-weight: 600; }}
QLabel#key {{ color: {TEXT_MUTED}; background: {BACKGROUND}; border: 1px solid {BORDER}; border-radius: 4px;
    padding: 1px 7px; font-size: 12px; font-weight: 600; }}
QFrame#sidebar {{ background: {SURFACE}; border-radius: 8px; }}
QProgressBar {{ background: {SURFACE_RAISED}; border: none; border-radius: 3px; max-height: 6px; min-height: 6px; }}
QProgressBar::chunk {{ background: {SUCCESS}; border-radius: 3px; }}
QPushButton {{ background: {SURFACE_RAISED}; border: 1px solid {BORDER}; border-radius: 8px; }}
QPushButton:hover {{ background: {BORDER}; }}
QPushButton:pressed {{ background: {UNLABELED}; border-color: {TEXT_MUTED}; }}
QPushButton:disabled {{ background: {SURFACE}; }}
QPushButton#label_success, QPushButton#success_from_here {{ border: 2px solid {SUCCESS}; }}
QPushButton#label_failure, QPushButton#fail {{ border: 2px solid {FAILURE}; }}
QPushButton#complete {{ background: #cdd4dc; border: none; }}
QPushButton#complete:hover {{ background: #e8ecf1; }}
QPushButton#complete QLabel#title {{ color: #15181c; font-size: 17px; font-weight: 600; }}
QPushButton#complete QLabel#key {{ color: #2b3138; background: #b4bdc7; border: none; }}
QListView {{ background: {SURFACE}; border: none; outline: none; }}
QListView::item {{ padding: 5px 8px; border-radius: 5px; }}
QListView::item:selected {{ background: {BORDER}; color: {TEXT_STRONG}; }}
QListView::item:hover:!selected {{ background: {SURFACE_RAISED}; }}
QScrollBar:vertical {{ background: {SURFACE}; width: 8px; margin: 0; }}
QScrollBar::handle:vertical {{ background: {BORDER}; border-radius: 4px; min-height: 30px; }}
QScrollBar::add-line, QScrollBar::sub-line {{ height: 0; }}
"""
