"""The same while a policy behind openpi's server acts: the learner learns from its labeled episodes.

    python run_online_rl_openpi.py --robot igris_b --policy_yaml examples/policies/openpi_igris_b/openpi_policy.yaml

Start openpi's server first, where the GPU is. Its weights stay as they are; what is learned here is in the run's
folder, and `plaudit run --policy_yaml RUN/policy/policy.yaml` acts with it.
"""

from plaudit.cli import quiet_imports

with quiet_imports():
    from pathlib import Path

    from plaudit.cli.online import run_script

HERE = Path(__file__).parent

if __name__ == "__main__":
    run_script(
        "Learn from what a policy behind openpi's server does: it acts, a judge labels its episodes, a learner learns.",
        train_config=HERE / "examples/configs/online_igris_b.yaml",
        policy_yaml=HERE / "examples/policies/openpi_igris_b/openpi_policy.yaml",
        always=["policy.behavior=pretrained"],
    )
