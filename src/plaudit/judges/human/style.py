"""The window's look: the dark palette, calm for an hour of looking."""

from plaudit.judges.human.palette import DARK

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
