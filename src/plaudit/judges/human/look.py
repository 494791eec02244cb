"""Colours of the window: dark and calm for an hour of looking; blue and orange, which all eyes tell apart."""

BACKGROUND, PANEL, RAISED, LINE = "#15181c", "#1b1f24", "#262b32", "#39414b"
INK, FAINT, BRIGHT = "#dfe3e8", "#8d97a3", "#ffffff"
SUCCESS, FAILURE, UNJUDGED = "#4c9be8", "#d1843a", "#333a43"
WARNING = "#f0b429"
STRIP_SUCCESS, STRIP_FAILURE = "#33689c", "#8a5a2e"  # the same over large areas, quieter
CURVES = ("#ffffff", "#f2e35b", "#6fe0bd", "#d7a6ec")  # one a judge, readable on all three of the above


def verdict_colour(value: float, success: str = SUCCESS, failure: str = FAILURE) -> str:
    """Of 1, 0 or NaN."""
    if value != value:
        return UNJUDGED
    return success if value >= 0.5 else failure


STYLE = f"""
QWidget {{ background: {BACKGROUND}; color: {INK}; font-size: 14px; }}
QLabel {{ background: transparent; }}
QLabel#task {{ color: {BRIGHT}; font-size: 22px; font-weight: 600; }}
QLabel#faint, QLabel#facts {{ color: {FAINT}; }}
QLabel#heading {{ color: {FAINT}; font-size: 12px; font-weight: 600; letter-spacing: 1px; }}
QLabel#counter {{ color: {BRIGHT}; font-size: 17px; font-weight: 600; }}
QLabel#key {{ color: {FAINT}; background: {BACKGROUND}; border: 1px solid {LINE}; border-radius: 4px; padding: 1px 7px;
    font-size: 12px; font-weight: 600; }}
QFrame#side {{ background: {PANEL}; border-radius: 8px; }}
QProgressBar {{ background: {RAISED}; border: none; border-radius: 3px; max-height: 6px; min-height: 6px; }}
QProgressBar::chunk {{ background: {SUCCESS}; border-radius: 3px; }}
QPushButton {{ background: {RAISED}; border: 1px solid {LINE}; border-radius: 8px; }}
QPushButton:hover {{ background: {LINE}; }}
QPushButton:pressed {{ background: {UNJUDGED}; border-color: {FAINT}; }}
QPushButton:disabled {{ background: {PANEL}; }}
QPushButton#one, QPushButton#from_here {{ border: 2px solid {SUCCESS}; }}
QPushButton#zero, QPushButton#fail {{ border: 2px solid {FAILURE}; }}
QPushButton#complete {{ background: #cdd4dc; border: none; }}
QPushButton#complete:hover {{ background: #e8ecf1; }}
QPushButton#complete QLabel#title {{ color: #15181c; font-size: 17px; font-weight: 600; }}
QPushButton#complete QLabel#key {{ color: #2b3138; background: #b4bdc7; border: none; }}
QListView {{ background: {PANEL}; border: none; outline: none; }}
QListView::item {{ padding: 5px 8px; border-radius: 5px; }}
QListView::item:selected {{ background: {LINE}; color: {BRIGHT}; }}
QListView::item:hover:!selected {{ background: {RAISED}; }}
QScrollBar:vertical {{ background: {PANEL}; width: 8px; margin: 0; }}
QScrollBar::handle:vertical {{ background: {LINE}; border-radius: 4px; min-height: 30px; }}
QScrollBar::add-line, QScrollBar::sub-line {{ height: 0; }}
"""
