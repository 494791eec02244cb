"""Online reinforcement learning: a robot acts, a judge labels its episodes, a learner learns, weights go to the robot.

    python run_online_rl.py --robot igris_b --train_config examples/configs/online_igris_b.yaml
    python run_online_rl.py --robot igris_b --human_reward_labeler
    python run_online_rl.py --robot sim --train_config my_run.yaml  # which has robot: {type: sim, env: {type: lift}}

The same as `plaudit online`, which has more flags (docs/online.md).
"""

from plaudit.cli import quiet_imports

with quiet_imports():
    from pathlib import Path

    from plaudit.cli.online import run_script

HERE = Path(__file__).parent

if __name__ == "__main__":
    run_script(
        "Learn while a robot works: it acts, a judge labels its episodes, a learner learns, weights go to the robot.",
        train_config=HERE / "examples/configs/online_igris_b.yaml",
    )
