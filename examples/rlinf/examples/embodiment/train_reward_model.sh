#!/usr/bin/env bash
# Trains a reward model on ./reward_data: bash examples/embodiment/train_reward_model.sh [FLAG]...
set -euo pipefail
weights=()
[ ! -f resnet10_pretrained.pt ] || weights=(--pretrained-encoder-path ./resnet10_pretrained.pt)
exec "${PYTHON:-python}" "$(dirname "${BASH_SOURCE[0]}")/train_reward_model.py" \
    --positive-dir ./reward_data/positive --negative-dir ./reward_data/negative \
    --output-checkpoint ./checkpoints/reward_model.pt --backbone resnet10 --image-key base_camera --image-size 3 64 64 \
    --batch-size 128 --epochs 30 --lr 1e-4 --hidden-dim 256 --num-spatial-blocks 8 "${weights[@]}" "$@"
