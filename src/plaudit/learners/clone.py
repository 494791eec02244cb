"""Behavior cloning of an image encoder, which is then frozen: `policy.encoder.type=cloned`.

A network learns to imitate the demonstrations from frames and state. Its encoder has then learned to see what the
actions depend on, and is kept. The rest is dropped: the learner trains its own actor on the features.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from plaudit.data.batch import to_torch
from plaudit.data.demonstrations import Demonstrations
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.devices import Adam
from plaudit.policies.config import ImageEncoderConfig
from plaudit.policies.networks import Linear, mlp, random_shift, seeded
from plaudit.policies.pretrained import FrozenEncoder
from plaudit.types import AnyArray, Batch, EnvSpec

LR = 1e-3
HIDDEN_DIMS = (256, 256)
SHIFT_PAD = 3  # pixels by which frames are shifted at random
MIN_DEVIATION = 1e-2  # of a feature, that features are divided by


def clone_encoder(
    config: ImageEncoderConfig,
    env_spec: EnvSpec,
    demos: Store,
    prepare: Callable[[Batch[AnyArray]], Batch[AnyArray]] = lambda batch: batch,
    *,
    seed: int,
    device: torch.device,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> FrozenEncoder:
    """Train an encoder on demonstrations. The features of their frames get a mean of 0 and a deviation of 1.

    prepare: normalizes states and actions of a batch
    track: shows the progress of a loop
    """
    with seeded(seed):
        encoder = FrozenEncoder(config, env_spec.cameras).to(device).requires_grad_(True)
        inputs = env_spec.state_dim + sum(shape[0] for shape in encoder.shapes.values())
        actor = nn.Sequential(
            mlp([inputs, *HIDDEN_DIMS], nn.ReLU, norm=True), Linear(HIDDEN_DIMS[-1], env_spec.action_dim)
        )
    actor.to(device)
    networks = encoder.networks.train()
    optimizer = Adam([*networks.parameters(), *actor.parameters()], lr=LR, weight_decay=1e-5)
    rng = torch.Generator(device).manual_seed(seed)
    with Demonstrations.of(demos).open(demos) as chosen:
        replay = ReplaySampler(chosen, cameras=tuple(env_spec.cameras), demonstrations=True, seed=seed)
        for _ in track(range(config.clone_updates)):
            batch = to_torch(prepare(replay.sample(config.clone_batch_size)), device)
            frames = {camera: random_shift(images, rng, SHIFT_PAD) for camera, images in batch.images.items()}
            features = torch.cat([*encoder(frames).values(), batch.state], dim=1)
            loss = F.mse_loss(actor(features).tanh(), batch.actions.clamp(-1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        encoder.requires_grad_(False).eval()
        _standardize(encoder, chosen)
    return encoder


def _standardize(encoder: FrozenEncoder, demos: Store) -> None:
    """Set the offset and scale of the features by those of the demonstrations."""
    encoded = [encoder.encode(episode.frames) for _, episode in demos]
    encoder.forget()
    for camera in encoder.shapes:
        values = torch.from_numpy(np.concatenate([features[camera] for features in encoded]))
        encoder.offset[camera].copy_(values.mean(dim=0))
        encoder.scale[camera].copy_(values.std(dim=0) + MIN_DEVIATION)
