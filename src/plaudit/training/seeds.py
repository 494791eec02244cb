"""Seeds of episodes: disjoint ranges for training, evaluation, the final test and demonstrations."""

from collections.abc import Iterator

EVAL_SEEDS = 1_000_000_000  # evaluations during a run, which may decide when it stops
TEST_SEEDS = EVAL_SEEDS + 1_000_000  # measuring a finished run without that bias
DEMO_SEEDS = 2_000_000_000  # scripted demonstrations


def train_seed(run_seed: int, episode: int) -> int:
    """Of an episode of a run."""
    return (run_seed * 10_000_019 + episode) % EVAL_SEEDS


def demo_seed(run_seed: int) -> int:
    """Of the first scripted demonstration of a run."""
    return DEMO_SEEDS + run_seed * 100_003


def seed_batches(first: int, episodes: int, num_envs: int) -> Iterator[list[int]]:
    """At least so many seeds, a batch for each rollout."""
    for start in range(first, first + episodes, num_envs):
        yield list(range(start, start + num_envs))
