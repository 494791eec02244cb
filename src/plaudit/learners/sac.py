"""Soft actor-critic for robots that have demonstrations: SAC (arXiv 1812.05905) as RLPD (2302.02948) runs it.

What RLPD changes, and where to find it below: each batch is half demonstrations, half the robot's own experience
(`Replay.mix` made it); critics have LayerNorm, which keeps them from dreaming beyond the data (`Critics`); the target
is the least of a random few out of an ensemble (`_critic_loss`); several critic steps follow each step of the robot
(`updates_per_step`, the run's loop counts). As in HIL-SERL (2410.21845), the entropy is not part of the
target. Reward and end come from the labels alone: `target = reward + discount * value`.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from plaudit.config import Config
from plaudit.learners.networks import Critics, Encoder, Seen, Spaces, TanhGaussian, random_shift, seen_of
from plaudit.types import Batch, FloatArray, Observation


class SacConfig(Config):
    type: Literal["sac"] = "sac"
    gamma: float = Field(0.97, ge=0, le=1)  # discount of a step
    lr: PositiveFloat = 1e-3
    n_step: PositiveInt = 1  # rewards summed up before a critic is asked
    tau: float = Field(0.005, gt=0, le=1)  # how far the target critics move to the critics at each update
    batch_size: PositiveInt = 256
    hidden: tuple[PositiveInt, ...] = (128, 128)
    critics: PositiveInt = 2  # in the ensemble
    critics_in_target: PositiveInt = 2  # drawn anew for each target
    updates_per_step: PositiveFloat = 0.5  # the update-to-data ratio: critic updates a step of the robot
    actor_every: PositiveInt = 2  # critic updates to one of the actor
    temperature: PositiveFloat = 0.01  # at the start; it then follows the target entropy
    target_entropy: float | None = None  # None: minus half the number of actions
    start_after: int = Field(100, ge=0)  # steps of random actions before the first update
    demo_share: float = Field(0.5, ge=0, le=1)  # of each batch, when there are demonstrations
    shift: int = Field(4, ge=0)  # pixels by which images are moved at random; 0 for none

    def build(self, spaces: Spaces, seed: int, device: str) -> "Sac":
        return Sac(self, spaces, seed, device)


class Sac:
    """A `Learner`."""

    def __init__(self, config: SacConfig, spaces: Spaces, seed: int = 0, device: str = "cpu"):
        self.config, self.spaces, self.device = config, spaces, torch.device(device)
        self.version = 0
        self.rng = torch.Generator(device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor_eye, self.critic_eye, self.target_eye = (Encoder(spaces) for _ in range(3))
            inputs = self.actor_eye.size
            self.actor = TanhGaussian(inputs, spaces.action_dim, config.hidden)
            self.critic, self.target = (
                Critics(config.critics, inputs + spaces.action_dim, config.hidden) for _ in range(2)
            )
        self.target.load_state_dict(self.critic.state_dict())
        self.target_eye.load_state_dict(self.critic_eye.state_dict())
        self.log_temperature = nn.Parameter(torch.tensor(config.temperature).log())
        self.modules = nn.ModuleDict(
            {
                "actor_eye": self.actor_eye, "actor": self.actor,
                "critic_eye": self.critic_eye, "critic": self.critic,
                "target_eye": self.target_eye, "target": self.target,
            }
        ).to(self.device)  # fmt: skip
        self.log_temperature.data = self.log_temperature.data.to(self.device)
        self.target_entropy = config.target_entropy if config.target_entropy is not None else -spaces.action_dim / 2

        def adam(*parts: nn.Module) -> torch.optim.Adam:
            return torch.optim.Adam([p for part in parts for p in part.parameters()], lr=config.lr, fused=True)

        self.optimizers = {
            "critic": adam(self.critic_eye, self.critic),
            "actor": adam(self.actor_eye, self.actor),
            "temperature": torch.optim.Adam([self.log_temperature], lr=config.lr),
        }

    def act(self, observation: Observation, *, explore: bool) -> FloatArray:
        """Actions [N, A] for N observations."""
        with torch.inference_mode():
            features = self.actor_eye(seen_of(observation, self.spaces, self.device))
            actions = self.actor(features, self._noise(len(features)))[0] if explore else self.actor.best(features)
        return actions.cpu().numpy()

    def update(self, batch: Batch[Tensor]) -> Mapping[str, float]:
        """One step of the critics and, every so often, of actor and temperature."""
        self.version += 1
        seen = Seen(self._shifted(batch.images), batch.state)
        after = Seen(self._shifted(batch.next_images), batch.next_state)
        critic_loss, value = self._critic_loss(batch, seen, after)
        self._step("critic", critic_loss)
        metrics = {"loss/critic": critic_loss, "value/mean": value}
        if self.version % self.config.actor_every == 0:
            actor_loss, entropy = self._actor_loss(seen)
            self._step("actor", actor_loss)
            temperature_loss = self.log_temperature.exp() * (entropy - self.target_entropy).detach()
            self._step("temperature", temperature_loss)
            metrics |= {"loss/actor": actor_loss, "policy/entropy": entropy}
            metrics |= {"policy/temperature": self.log_temperature.exp()}
        with torch.no_grad():
            for slow, fast in ((self.target, self.critic), (self.target_eye, self.critic_eye)):
                slow_list = list(slow.parameters())
                if slow_list:
                    torch._foreach_lerp_(slow_list, list(fast.parameters()), self.config.tau)
        return {name: float(number.detach()) for name, number in metrics.items()}

    def _critic_loss(self, batch: Batch[Tensor], seen: Seen, after: Seen) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            actions, _ = self.actor(self.actor_eye(after), self._noise(len(batch.reward)))
            values = self.target(self.target_eye(after), actions, self._few())
            target = batch.reward + batch.discount * values.amin(dim=0)
        values = self.critic(self.critic_eye(seen), batch.actions.clamp(-1, 1))
        return (values - target).square().mean(dim=1).sum(), values.detach().mean()

    def _actor_loss(self, seen: Seen) -> tuple[Tensor, Tensor]:
        actions, log_density = self.actor(self.actor_eye(seen), self._noise(len(seen.state)))
        with torch.no_grad():
            features = self.critic_eye(seen)
        value = self.critic(features, actions).mean(dim=0)
        temperature = self.log_temperature.exp().detach()
        return (temperature * log_density - value).mean(), -log_density.detach().mean()

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward(inputs=[p for group in optimizer.param_groups for p in group["params"]])
        optimizer.step()

    def _shifted(self, images: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not self.config.shift:
            return images
        return {camera: random_shift(image, self.rng, self.config.shift) for camera, image in images.items()}

    def _few(self) -> Tensor | None:
        """Which critics a target asks: a random few, or all (None)."""
        if self.config.critics_in_target >= self.config.critics:
            return None
        shuffled = torch.randperm(self.config.critics, generator=self.rng, device=self.device)
        return shuffled[: self.config.critics_in_target]

    def _noise(self, count: int) -> Tensor:
        return torch.randn(count, self.spaces.action_dim, generator=self.rng, device=self.device)
