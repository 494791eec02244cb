"""EXPO (arXiv 2507.07986, and EXPO-FT, 2605.25477): an expressive base policy and a small policy that edits its chunks.

    base        a trained flow, N chunks of noise each; it stays as it is, or slowly imitates successes (`finetune_lr`)
    editor      adds a correction of at most `edit_scale` to the first h actions of each chunk
    critics     Q(s, a_1..a_h), an ensemble. The best of the N base chunks and the N edited ones is executed. The less
                convinced of two random critics decides, anew for each decision.
    target      r_1 + .. + gamma^(h-1) r_h + gamma^h min Q'(s_h, the best candidate there), by two random target critics

The editor maximizes the critics' mean, with an entropy bonus as in SAC. The gradient never goes through the flow.
`edit_penalty` keeps edits small where the critics see no clear gain: they overestimate edits that were never tried.
With one chunk and no choice this is residual reinforcement learning: `num_samples=1 select=false`.

A window that ends early with success keeps its loss, since it holds the reward. Windows cut by the time limit do not.
Two details differ from the authors' code. The editor is trained on chunks of the base, as it will see them, not on
recorded chunks. Its entropy is that of tanh's sample before scaling, whose range does not depend on `edit_scale`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from plaudit.devices import Adam
from plaudit.learners.base import (
    CriticLearner,
    chunk_critic_loss,
    make_adam,
    optimizer_step,
    sample_critics,
    soft_update,
)
from plaudit.learners.config import ExpoConfig
from plaudit.policies.config import CriticConfig, ExpoPolicyConfig
from plaudit.policies.flow import clip_actions, matching_loss, with_flag
from plaudit.policies.networks import CriticEnsemble, Encoder, ObsTensors
from plaudit.policies.steering import EditedChunks, load_base
from plaudit.types import Batch


class ExpoNet(nn.Module):
    """What is trained, the base and the target networks. Critics and editor share the critics' image encoder."""

    def __init__(self, config: ExpoPolicyConfig, temperature: float, make_encoder: Callable[[], Encoder]):
        super().__init__()
        self.policy = EditedChunks(config, make_encoder())
        self.target_encoder = make_encoder()
        inputs = self.target_encoder.size + self.policy.valued * config.action_dim
        self.target_critic = CriticEnsemble(config.critic.num_critics, inputs, config.critic.hidden_dims)
        self.target_encoder.load_state_dict(self.policy.encoder.state_dict())
        self.target_critic.load_state_dict(self.policy.critic.state_dict())
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())


class Expo(CriticLearner):
    """A `Learner` of batches from replay: windows of h actions and the sum of their rewards."""

    config: ExpoConfig
    net: ExpoNet

    def make_net(self) -> ExpoNet:
        """The base, its editor and the critics."""
        config = self.config
        config.check_fits(self.env_spec, self.encoder.config, self.encoder.history)
        numbers = config.backup_horizon * self.env_spec.action_dim
        self.target_entropy = -numbers / 2 if config.target_entropy is None else config.target_entropy
        net = ExpoNet(self.policy_config(), config.temperature_init, self.make_encoder)
        net.policy.base = load_base(config.base_spec, config.flow, self.around)
        return net

    def make_optimizers(self) -> dict[str, Adam]:
        """One of the critics, one of the editor and the temperature, and one of a base that is fine-tuned."""
        config, policy = self.config, self.net.policy
        optimizers = {
            "critic": make_adam(config.lr, policy.encoder, policy.critic),
            "editor": make_adam(config.lr, policy.editor, self.net.log_temperature),
        }
        if config.finetune_lr:
            optimizers["base"] = make_adam(config.finetune_lr, policy.base.encoder, policy.base.velocity_net)
        return optimizers

    @property
    def windows(self) -> dict[str, int]:
        """Whole chunks, with the rewards of the valued actions."""
        return {"n_step": self.config.backup_horizon, "horizon": self.config.action_horizon}

    def choose_chunks(self, obs: ObsTensors, rng: torch.Generator, *, explore: bool = True) -> Tensor:
        """Chunks [N, H, A] for N observations; their noise explores, in any case."""
        return self.net.policy(obs, rng)

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics, of the editor and its temperature, and of the base where it is trained."""
        follows = self.count_update()
        self.net.policy.learned.fill_(True)
        grown = min(1.0, self.version / max(1, self.config.edit_warmup))
        self.net.policy.editor.scale.fill_(self.config.edit_scale * grown)
        return self.run_step(self._step, batch, update_editor=follows)

    def _step(self, batch: Batch[Tensor], *, update_editor: bool) -> dict[str, Tensor]:
        obs, next_obs = self.augment_batch(batch, self.config.random_shift_pad)
        # Critics.
        critic_loss, q_mean = self._critic_loss(batch, obs, next_obs)
        optimizer_step(self.optimizers["critic"], critic_loss, self.sync)
        metrics = {"loss/critic": critic_loss, "critic/q_mean": q_mean}
        # Editor and temperature.
        if update_editor:
            metrics |= self._update_editor(obs)
        # Base.
        if self.config.finetune_lr:
            metrics["loss/flow"] = loss = self._base_loss(batch, obs)
            optimizer_step(self.optimizers["base"], loss, self.sync)
        # Target networks.
        soft_update(self.net.target_critic, self.net.policy.critic, self.config.tau)
        soft_update(self.net.target_encoder, self.net.policy.encoder, self.config.tau)
        return {name: number.detach() for name, number in metrics.items()}

    def _critic_loss(self, batch: Batch[Tensor], obs: ObsTensors, next_obs: ObsTensors) -> tuple[Tensor, Tensor]:
        config, policy, valued = self.config, self.net.policy, self.config.backup_horizon
        with torch.no_grad():
            chunks = policy(next_obs, self.rng)[:, :valued].flatten(1)
            pair = sample_critics(config.num_subsample_critics, config.num_critics, self.rng)
            values = self.net.target_critic(self.net.target_encoder(policy.base.units.scaled(next_obs)), chunks, pair)
            target = batch.reward + batch.discount * values.amin(dim=0)
        values = policy.critic(policy.features(obs), clip_actions(batch.actions[:, :valued]).flatten(1))
        return chunk_critic_loss(values, target, batch, valued), values.mean()

    def _update_editor(self, obs: ObsTensors) -> dict[str, Tensor]:
        policy, valued = self.net.policy, self.config.backup_horizon
        with torch.no_grad():
            features, chunks = policy.features(obs), policy.base.sample(obs, self.rng)[:, None, :valued]
        noise = torch.randn(chunks.flatten(2).shape, generator=self.rng, device=self.device)
        edits, log_density = policy.editor.edits(features, chunks, noise)
        edited = clip_actions(chunks + policy.editor.scale * edits)
        entropy, temperature = -log_density.detach().mean(), self.net.log_temperature.exp()
        value = policy.critic(features, edited[:, 0].flatten(1)).mean()
        penalty = self.config.edit_penalty * edits.square().mean()
        loss = temperature.detach() * log_density.mean() - value + penalty
        temperature_loss = temperature * (entropy - self.target_entropy).detach()
        optimizer_step(self.optimizers["editor"], loss + temperature_loss, self.sync)
        return {"loss/actor": loss, "policy/entropy": entropy, "policy/temperature": temperature}

    def _base_loss(self, batch: Batch[Tensor], obs: ObsTensors) -> Tensor:
        """Flow matching of what people did and of the run's successes, part 0 of a batch."""
        base = self.net.policy.base
        actions = base.units.action(clip_actions(batch.actions))
        features = base.features(obs)
        if base.config.improvement is not None:
            features = with_flag(features, torch.ones_like(batch.part))
        mask = batch.action_mask & (batch.part == 0)[:, None]
        return matching_loss(base.velocity_net, features, actions, mask, self.rng)

    @property
    def critics(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The ensemble with its target network."""
        return [(self.net.policy.critic, self.net.target_critic)]

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part: base, editor and critics."""
        return {"policy": self.net.policy}

    def policy_config(self, *, explore: bool = False) -> ExpoPolicyConfig:
        """The config of the policy that acts with these weights; its noise explores, in any case."""
        config = self.config
        return ExpoPolicyConfig(
            **self.policy_fields(explore=explore),
            base=config.flow,
            critic=CriticConfig(num_critics=config.num_critics, hidden_dims=config.hidden_dims),
            critic_horizon=config.critic_horizon,
            num_samples=config.num_samples,
            select=config.select,
        )
