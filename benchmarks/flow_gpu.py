"""Updates of a large flow policy on a GPU: weighted behavior cloning and EXPO, next to what the GPU can do at most.

    PYTHONPATH=src python benchmarks/flow_gpu.py [--quick] [--size 224] [--encoder vit] [--width 384] [--depth 3]

Needs torch, safetensors and transformers, no simulator. The policy has two cameras, 15 joint values and chunks of 16
actions. Each camera has a fine-tuned ViT with the width of ViT-L/16 and half its depth: 300 million random weights.
With `--encoder cnn --width 2048 --depth 12` they are in the flow instead. Batches have 64 windows, in
uint8 as replay hands them out.

    ceiling     a large product of matrices in bfloat16, in the same run
    memory      the time to read and write weights, gradients and Adam's averages once, at the speed of a copy in the
                same run: an update of a network that uses each weight once per example cannot be faster
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import learn_gpu
import vlm
from bars import Bars
from plaudit.data.batch import to_torch
from plaudit.data.normalize import ACTION, STATE, Normalizer, Stats
from plaudit.learners.config import ExpoConfig, WeightedBcConfig
from plaudit.policies.config import FlowConfig, ImageEncoderConfig, VelocityNetConfig
from plaudit.policies.flow import FlowPolicy
from plaudit.policies.loader import save_policy
from plaudit.policies.networks import weights_of

BATCH, HORIZON = 64, 16
ADAM_BYTES = 7 * 4  # of each weight: read weight, gradient and two averages, write weight and averages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small flow and few updates: whether it runs")
    parser.add_argument("--size", type=int, default=224, help="height and width of an image")
    parser.add_argument("--encoder", choices=("vit", "cnn"), default="vit", help="of images")
    parser.add_argument("--width", type=int, default=384, help="of the flow's blocks")
    parser.add_argument("--depth", type=int, default=3, help="blocks of the flow")
    options = parser.parse_args()
    if options.quick:
        options.size, options.width, options.depth = 64, 64, 2
    device, count = torch.device(learn_gpu.DEVICE), 3 if options.quick else 20
    ceiling, copied = vlm.product_flops_per_s(device), copy_bytes_per_s(device)
    place = torch.cuda.get_device_name() if device.type == "cuda" else "no GPU"
    print(f"{place}, torch {torch.__version__}: products {ceiling / 1e12:.3g} TFLOP/s, copies {copied / 1e12:.2g} TB/s")
    spec, rng, bars = learn_gpu.env_spec(options.size), np.random.default_rng(0), Bars()
    batch = to_torch(learn_gpu.transitions(rng, BATCH, spec, horizon=HORIZON), device)
    with tempfile.TemporaryDirectory() as folder:
        base, weights = random_base(Path(folder) / "base", spec, options, device)
        print(
            f"a policy of {weights / 1e6:.0f} million weights, batches of {BATCH}, {options.size}x{options.size} images"
        )
        for name, config in (
            ("weighted_bc", WeightedBcConfig(base=base, method="success")),
            ("weighted_bc_advantage", WeightedBcConfig(base=base, method="advantage")),
            ("expo", ExpoConfig(base=base, edit_warmup=0)),
            ("expo_finetune", ExpoConfig(base=base, edit_warmup=0, finetune_lr=1e-5)),
        ):
            eager = config.model_copy(update={"cuda_graphs": False}).build(spec, 0, str(device))
            with FlopCounterMode(display=False) as counter:
                eager.update(batch)
            work = counter.get_total_flops()
            slow = learn_gpu.timed(partial(eager.update, batch), max(count // 5, 2))
            del eager
            learner = config.build(spec, 0, str(device))
            ms = learn_gpu.timed(partial(learner.update, batch), count)
            trained = sum(p.numel() for optimizer in learner.optimizers.values() for p in parameters(optimizer))
            memory = 1e3 * trained * ADAM_BYTES / copied
            share = work / (ms / 1e3) / ceiling
            print(
                f"{name}: {ms:.2f} ms (eager {slow:.2f} ms), {work / 1e12:.3g} TFLOP, {share:.1%} of the ceiling; "
                f"memory {memory:.2f} ms ({memory / ms:.0%} of the update)"
            )
            bars.at_least(f"{name}_share_of_ceiling", share, 0.4)
            del learner
    bars.report()


def random_base(folder: Path, spec: Any, options: Any, device: torch.device) -> tuple[Path, int]:
    """The folder of a flow policy of random weights, and how many weights it has."""
    net = VelocityNetConfig(width=options.width, depth=options.depth)
    encoder = vit_config(options) if options.encoder == "vit" else ImageEncoderConfig()
    config = FlowConfig(**spec.policy_fields(), horizon=HORIZON, velocity_net=net, encoder=encoder, device=device.type)
    policy = FlowPolicy(config)
    numbers = {STATE: spec.state_dim, ACTION: spec.action_dim}
    stats = {key: Stats(np.zeros(n, np.float32), np.ones(n, np.float32)) for key, n in numbers.items()}
    save_policy(folder, config, weights_of(1, policy.components), Normalizer(stats))
    return folder, sum(p.numel() for part in policy.components.values() for p in part.parameters())


def vit_config(options: argparse.Namespace) -> ImageEncoderConfig:
    """Half of a ViT-L/16, or a tiny one."""
    width, layers, heads = (64, 2, 4) if options.quick else (1024, 12, 16)
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    shape |= {"model_type": "vit", "intermediate_size": 4 * width, "image_size": options.size, "patch_size": 16}
    pixels = {"mean": (127.5, 127.5, 127.5), "std": (127.5, 127.5, 127.5)}
    return ImageEncoderConfig(
        type="transformers", frozen=False, options={"name": "vit", "architecture": shape, **pixels}
    )


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes read and written by a large copy."""
    source = torch.empty(2**30 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / vlm.seconds(lambda: target.copy_(source), 5)


if __name__ == "__main__":
    main()
