"""Whether chunks fit: of H actions s are executed before the next inference begins, and that takes d control steps.

    d <= s        an inference is done before the next is due
    s <= H - d    the next chunk is there before this one has run out

This is what real-time chunking asks for (arXiv 2506.07339). Otherwise the robot stops at the end of every chunk, so
nothing is driven like that. It is checked when a config is read, with a delay of one step, and with the measured one
before the first episode. A learner whose critics value h actions of a chunk needs s >= h.
"""

from plaudit.errors import ConfigError

EXECUTION_HORIZON = "policy.inference.execution_horizon"


def executed_steps(horizon: int, execution_horizon: int | None) -> int:
    """Steps of a chunk to execute: as configured, or half of the chunk."""
    return execution_horizon or max(horizon // 2, 1)


def chunk_problem(horizon: int, execution_horizon: int | None, delay: int = 1, latency: str = "") -> str:
    """One sentence that says which number to change; "" where chunks fit.

    latency: of an inference, as text; "" where it was not measured
    """
    if horizon == 1:
        return "a chunk of one action is over before the next is there; use sequential for this policy"
    executed = executed_steps(horizon, execution_horizon)
    if delay <= executed <= horizon - delay:
        return ""
    steps = f"{delay} control step{'s' if delay > 1 else ''}"
    takes = f"takes {steps} ({latency})" if latency else f"takes at least {steps}"
    late = executed > horizon - delay
    why = (
        "a chunk would run out before the next is there"
        if late
        else "it would still be running when the next one starts"
    )
    if horizon >= 2 * delay:
        last = horizon - delay
        fix = f"set that to {delay}" + (f" to {last}" if last > delay else "")
        fix += f", or the policy's horizon to at least {executed + delay}" if late else ""
    else:
        fix = (
            f"that needs a policy with a horizon of at least {2 * delay}, or an inference within {horizon // 2} steps: "
            "another policy.device, or a lower policy.inference.control_hz"
        )
    return (
        f"of chunks of {horizon} actions {executed} are to be executed before the next inference begins "
        f"({EXECUTION_HORIZON}), which {takes}: {why}; {fix}"
    )


def backup_problem(algorithm: str, horizon: int, execution_horizon: int | None, backup_horizon: int) -> str:
    """Why a learner's values would be of actions that are not executed; "" where the engine executes enough.

    backup_horizon: actions of a chunk that the learner's backup spans
    """
    executed = executed_steps(horizon, execution_horizon) if algorithm == "rtc" else execution_horizon or horizon
    if executed >= backup_horizon:
        return ""
    enough = f"set that to {backup_horizon} or more, " if backup_horizon < horizon or algorithm != "rtc" else ""
    other = "write policy.inference=sequential, " if algorithm == "rtc" else ""
    return (
        f"the learner's backup spans {backup_horizon} actions, and {algorithm} executes {executed} of a chunk before "
        f"the next inference ({EXECUTION_HORIZON}); {enough}{other}or shorten the backup (qchunk: "
        f"learner.critic_horizon={executed})"
    )


def check_chunks(
    algorithm: str, execution_horizon: int | None, horizon: int | None, backup_horizon: int | None = None
) -> None:
    """Refuse settings with which the algorithm cannot execute as much of a chunk as it has to.

    horizon: actions of the policy's chunks, where that is known
    backup_horizon: of these, how many a learner's backup spans; None: nothing learns from them
    """
    if horizon is None:
        return
    problem = "" if backup_horizon is None else backup_problem(algorithm, horizon, execution_horizon, backup_horizon)
    if not problem and algorithm == "rtc":
        problem = chunk_problem(horizon, execution_horizon)
    elif not problem and algorithm == "sequential" and (execution_horizon or 1) > horizon:
        problem = f"{EXECUTION_HORIZON} is {execution_horizon}, and chunks have {horizon} actions; lower it"
    if problem:
        raise ConfigError([(tuple(EXECUTION_HORIZON.split(".")), problem)])
