"""Critics that start anew: after labels were corrected, or at intervals where there are many updates per step.

Critics that were trained on wrong labels keep some of them after the labels are corrected, and critics that are trained
often on few episodes overfit them (arXiv 2205.07802). A reset gives the critics new weights and forgets the moments of
their optimizer. Their image encoders stay. Then only the critics learn for a while, from replay with the labels as they
are now: the actor does not follow untrained critics, and the robot keeps its policy.

Everything follows from the number of updates and from the ledger, so a resumed run makes the same resets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plaudit.learners.base import LearnerBase
from plaudit.policies.networks import CriticEnsemble, Linear, seeded

STATE = "resets"  # of a learner, among dumped tensors


class CriticLearner(LearnerBase):
    """Base of `Sac` and `QChunk`."""

    extra_updates = 0  # due after resets by relabeling, over the whole run
    _relearn_until = 0  # the version up to which only the critics learn
    _label_changes = 0  # that were taken into account

    @property
    def critics(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Each critic with its target network."""
        raise NotImplementedError

    @property
    def relearning(self) -> bool:
        """Whether the critics are too new for a policy to follow them."""
        return self.version < self._relearn_until

    def count_update(self) -> bool:
        """Begin an update; resets the critics at their interval. Returns whether a policy may follow them."""
        every = self.config.resets.every
        if every is not None and self.version and self.version % every == 0:
            self.reset_critics()
        follows = not self.relearning
        self.version += 1
        return follows

    def take_label_changes(self, changes: int, episodes: int) -> None:
        """Reset the critics if enough labels were corrected since they were last reset for this reason.

        changes: how often a later label changed the success of an episode, over the whole run
        episodes: that have a label
        """
        share = self.config.resets.relabeled
        if share is None or changes - self._label_changes < max(1, share * episodes):
            return
        self._label_changes = changes
        if self.version:  # nothing is learned yet otherwise
            self.reset_critics()
            self.extra_updates += self.config.resets.relearn_updates

    def reset_critics(self) -> None:
        """Give the critics new weights, in place, as CUDA graphs need it."""
        self._relearn_until = self.version + self.config.resets.relearn_updates
        with seeded(self.seed * 1009 + self.version):
            for critic, target in self.critics:
                for module in critic.modules():
                    if isinstance(module, CriticEnsemble | Linear | nn.LayerNorm):
                        module.reset_parameters()
                target.load_state_dict(critic.state_dict())
        moments = self.optimizers["critic"].state
        for parameter in (parameter for critic, _ in self.critics for parameter in critic.parameters()):
            for tensor in moments.get(parameter, {}).values():
                tensor.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, by name; on the CPU."""
        counts = [self.extra_updates, self._relearn_until, self._label_changes]
        return super().state_dict() | {STATE: torch.tensor(counts)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of an object with the same config."""
        super().load_state_dict(state)
        counts = state.get(STATE, torch.zeros(3, dtype=torch.long)).tolist()  # a checkpoint of an earlier version
        self.extra_updates, self._relearn_until, self._label_changes = counts


def extra_updates(learner: Any) -> int:
    """Updates of a learner that resets by relabeling have added, over the whole run."""
    return learner.extra_updates if isinstance(learner, CriticLearner) else 0


def relearning(learner: Any) -> bool:
    """Whether its policy should not be published now."""
    return isinstance(learner, CriticLearner) and learner.relearning
