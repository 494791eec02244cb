"""Online reinforcement learning: a robot acts, episodes are judged, a learner learns, new weights go back to the robot.

    python run_online_rl.py --robot igris_b --train_config examples/configs/online_igris_b.yaml
    python run_online_rl.py --robot igris_b --human_reward_labeler
    python run_online_rl.py --robot sim --train_config examples/configs/online_sim_sac.yaml

The same as `plaudit online`, which has more flags (docs/online.md).
"""

from pathlib import Path

from plaudit.cli.script import run_script

HERE = Path(__file__).parent

if __name__ == "__main__":
    run_script(
        "Learn while a robot works: it acts, episodes are judged, the learner trains, weights go back.",
        train_config=HERE / "examples/configs/online_igris_b.yaml",
    )
