"""Imitation of judged episodes: a trained flow learns more from the better actions, and needs no gradient of a critic.

    success       demonstrations, corrections, and the run's episodes that were judged a success (filtered BC)
    advantage     every window, weighted by exp(advantage / temperature) (AWR, arXiv 1910.00177)
    progress      windows in which the judge's progress grows by more than `min_gain`
    conditioned   every window, with a flag that says whether it was better than expected (RECAP, arXiv 2511.14759)

The advantage of a window is the return that followed minus the value V(s), which is learned from the same judged
outcomes. A return is 0 after a failure and gamma^steps after a success: early success is better. With
`advantage_steps` the return is cut after some steps, and the value of what follows is added. What people did always has
the weight 1, or the flag.

The flag is an input of the flow. In training it is left out at random (`flag_dropout`), so the flow also learns what is
usually done. When acting, the flag is set, and the difference between the two is exaggerated (`guidance`, w):

    v = (1 - w) v(no flag) + w v(improves)

The result is a flow policy with the statistics of its base, so it can be the base of the next run.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from plaudit.data.normalize import Normalizer
from plaudit.devices import Adam
from plaudit.learners.base import EVAL_SEED, LearnerBase, make_adam, optimizer_step
from plaudit.learners.config import WeightedBcConfig
from plaudit.policies.config import FlowConfig
from plaudit.policies.flow import NONE, clip_actions, matching_loss, with_flag
from plaudit.policies.networks import Encoder, Linear, ObsTensors, mlp
from plaudit.policies.steering import load_base
from plaudit.types import Batch

MAX_STEPS = 1000  # of the rewards in a return of the whole episode


class WeightedBcNet(nn.Module):
    """The trained modules: the flow, and the value with an image encoder of its own."""

    def __init__(self, config: WeightedBcConfig, around: Normalizer | None, make_encoder: Callable[[], Encoder]):
        super().__init__()
        self.base = load_base(config.base_spec, config.flow, around)
        self.value_encoder = make_encoder()
        size, hidden = self.value_encoder.size, config.hidden_dims
        self.value = nn.Sequential(mlp([size, *hidden], nn.ReLU, norm=True), Linear(hidden[-1], 1))


class WeightedBC(LearnerBase):
    """A `Learner` of batches from replay."""

    config: WeightedBcConfig
    net: WeightedBcNet

    def make_net(self) -> WeightedBcNet:
        """The base and a value function."""
        self.config.check_fits(self.env_spec, self.encoder.config, self.encoder.history)
        return WeightedBcNet(self.config, self.around, self.make_encoder)

    def make_optimizers(self) -> dict[str, Adam]:
        """One of the base, and one of a value function that is used."""
        config, net = self.config, self.net
        optimizers = {"flow": make_adam(config.lr, net.base.encoder, net.base.velocity_net)}
        if self._has_value:
            optimizers["value"] = make_adam(config.value_lr, net.value_encoder, net.value)
        return optimizers

    @property
    def _has_value(self) -> bool:
        return self.config.method in ("advantage", "conditioned")

    @property
    def windows(self) -> dict[str, int]:
        """Whole chunks, and the return from their first step on."""
        config, horizon = self.config, self.config.action_horizon
        return {"n_step": (config.advantage_steps or MAX_STEPS) if self._has_value else horizon, "horizon": horizon}

    @property
    def executed(self) -> int:
        """A whole chunk."""
        return self.config.action_horizon

    def choose_chunks(self, obs: ObsTensors, rng: torch.Generator, *, explore: bool = True) -> Tensor:
        """Chunks [N, H, A] for N observations; sampling them is all that explores."""
        return self.net.base.sample(obs, rng)

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the flow and of the value."""
        self.version += 1
        return self.run_step(self._step, batch)

    def _step(self, batch: Batch[Tensor]) -> dict[str, Tensor]:
        obs, next_obs = self.augment_batch(batch, self.config.random_shift_pad)
        advantage, metrics = torch.zeros_like(batch.reward), {}
        if self._has_value:
            advantage, metrics = self._update_value(batch, obs, next_obs)
        features, weight = self.net.base.features(obs), self._weights(batch, advantage)
        if self.config.flow.improvement is not None:
            features = with_flag(features, self._flags(batch, advantage))
        actions = self.net.base.units.action(clip_actions(batch.actions))
        mask = batch.action_mask * weight[:, None]
        loss = matching_loss(self.net.base.velocity_net, features, actions, mask, self.rng)
        optimizer_step(self.optimizers["flow"], loss, self.sync)
        metrics |= {"loss/flow": loss, "policy/weight": weight.mean()}
        return {name: number.detach() for name, number in metrics.items()}

    def _update_value(
        self, batch: Batch[Tensor], obs: ObsTensors, next_obs: ObsTensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of the value; returns the advantage [B] from before it."""
        target = batch.reward
        if self.config.advantage_steps is not None:
            with torch.no_grad():
                target = target + batch.discount * self._value(next_obs)
        value = self._value(obs)
        loss = (value - target).square().mean()
        optimizer_step(self.optimizers["value"], loss, self.sync)
        return (target - value).detach(), {"loss/value": loss, "critic/value_mean": value.mean()}

    def _value(self, obs: ObsTensors) -> Tensor:
        return self.net.value(self.net.value_encoder(self.net.base.units.scaled(obs))).squeeze(1)

    def _weights(self, batch: Batch[Tensor], advantage: Tensor) -> Tensor:
        """How much each window [B] counts. Part 0 is what people did, and with `success` the run's successes."""
        config, shown = self.config, (batch.part == 0).float()
        if config.method == "success":
            return shown
        if config.method == "progress":
            return torch.maximum(shown, (batch.reward > config.min_gain).float())
        if config.method == "advantage":
            weight = (advantage / config.temperature).exp().clamp(max=config.max_weight)
            return torch.where(batch.part == 0, torch.ones_like(weight), weight)
        return torch.ones_like(shown)

    def _flags(self, batch: Batch[Tensor], advantage: Tensor) -> Tensor:
        """Whether each window [B] improves: its advantage is positive, and among the highest of the run's own."""
        config, own = self.config, batch.part != 0
        if config.method != "conditioned":  # a base that has the flag learns more of what it is for
            return torch.ones_like(batch.part)
        ranked = torch.where(own, advantage, advantage.min() - 1).sort(descending=True).values
        last = (config.positive_share * own.sum()).long().clamp(max=len(ranked) - 1)
        least = ranked.gather(0, last[None]).clamp(min=0)  # an index of one number would wait for the GPU
        flag = ((advantage > least) | ~own).long()
        dropped = torch.rand(flag.shape, generator=self.rng, device=self.device) < config.flag_dropout
        return torch.where(dropped, torch.full_like(flag, NONE), flag)

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part: the flow."""
        base = self.net.base
        return {"encoder": base.encoder, "velocity_net": base.velocity_net, "units": base.units}

    def policy_config(self, *, explore: bool = False) -> FlowConfig:
        """The config of the policy that acts with these weights; sampling a chunk is all that explores."""
        return self.config.flow.model_copy(update={"seed": self.seed if explore else EVAL_SEED})
