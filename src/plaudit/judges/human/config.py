"""The config of a human judge: `judge=human`."""

from typing import Literal, NoReturn

from pydantic import Field

from plaudit.errors import JudgeError
from plaudit.judges.config import HUMAN, JudgeConfig
from plaudit.rule import DecisionRule, PartialRule


class HumanJudgeConfig(JudgeConfig):
    """A human who labels in a window on the labeling machine."""

    type: Literal["human"] = HUMAN
    rule: PartialRule = Field(default=DecisionRule(decode="per_frame"))

    def build(self) -> NoReturn:
        """Refused: a human is asked through a window (`HumanLabelWorker`, `plaudit label --judge human`)."""
        raise JudgeError("a human labels in a window, and not in place of a model: plaudit label STORE --judge human")
