"""`plaudit judge plan`: how good a judge must be for a task, and how many labels prove it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from plaudit.cli.common import out, stop, tell
from plaudit.cli.options import Count, Option, Share
from plaudit.errors import DataError

if TYPE_CHECKING:
    from plaudit.judges.plan import PlanTable


def plan_(
    # With --measure: keys of 'plaudit train' for its runs.
    words: Annotated[list[str] | None, Option(metavar="KEY=VALUE")] = None,
    *,
    env: str,  # The task: lift, pick_place, push; others with --measure.
    success: Share = 0.9,  # The true success rate wanted.
    precision: Share | None = None,  # A judge's precision, if half the episodes succeed.
    recall: Share | None = None,  # The recall of the same judge (episodes).
    tricks: Share = 0.0,  # Fraction of near successes that it labels a success.
    late_by: Count = 0,  # Number of episodes by which its labels are late.
    certificate: Path | None = None,  # A judge's certificate, instead of --precision and --recall.
    labels: Count | None = None,  # Show what this number of labeled episodes can prove.
    confidence: Annotated[float, Option(min=0.5, max=0.999)] = 0.9,  # Confidence of a proof.
    table: Path | None = None,  # A file of --measure, instead of the built-in runs.
    measure: bool = False,  # First do the runs missing in --table, up to a minute each.
    jobs: Annotated[int, Option(min=1, max=1000)] = 2,  # With --measure: number of parallel runs.
) -> None:
    """Show how good a judge must be for a task.

    Predicts the true success of a policy that learns from an imperfect judge, based on runs with simulated noisy
    judges. Shows what each kind of error costs, and the precision and recall that a success rate needs. Also shows how
    many labeled episodes prove them.
    """
    from plaudit.judges.plan import PlanTable
    from plaudit.report.tables import judge_sentences, labels_sentence, needs_sentences, needs_table, success_table

    cases = _cases(precision, recall, tricks, late_by, certificate)
    if words and not measure:
        raise DataError(f"{words[0]}: keys of 'plaudit train' need --measure; the runs of a table are finished")
    if measure:
        runs = _measure(env, table or Path(f"runs/judge_plan/{env}.json"), jobs, tuple(words or ()))
    else:
        runs = PlanTable.built_in() if table is None else PlanTable.load(table)
    plan = runs.plan(env)
    proven = [] if labels is None else [labels_sentence(plan, labels, confidence)]
    judged = judge_sentences(plan, cases)
    needs = needs_sentences(plan, success, confidence)
    for learner, keys in plan.recipes.items():
        out.print(f"{learner}: plaudit train {keys}")
    out.print("", success_table(plan), sep="\n")
    if success <= plan.best:
        out.print("", f"for {success:.0%} true success:", needs_table(plan, success), sep="\n")
    tell("note", *needs, *judged, *proven)
    tell("note", "this holds for the recipe above; with fewer demonstrations, a policy depends more on its judge")


def _cases(
    precision: float | None, recall: float | None, tricks: float, late_by: int, certificate: Path | None
) -> dict[str, dict[str, float]]:
    """name -> errors of the judges that were asked about."""
    from plaudit.judges.certificate import load_certificate
    from plaudit.judges.plan import noise_of, noise_of_certificate

    if (precision is None) != (recall is None):
        raise DataError("--precision and --recall go together: --precision 0.9 --recall 0.8")
    if certificate is not None and precision is not None:
        raise DataError("--certificate has the precision and recall of its judge; leave out one of the two")
    more = {"tricks": tricks, "late_by": float(late_by)}
    if certificate is not None:
        measured, worst = noise_of_certificate(load_certificate(certificate))
        return {"as examined": {**measured, **more}, "at the bad ends of its intervals": {**worst, **more}}
    if precision is not None and recall is not None:
        return {"this judge": {**noise_of(precision, recall), **more}}
    return {"this judge": more} if any(more.values()) else {}


def _measure(env: str, path: Path, jobs: int, keys: tuple[str, ...]) -> "PlanTable":
    """The runs of a file, and those that it lacks, which are added one by one."""
    from plaudit.judges.plan import PlanTable
    from plaudit.report.tables import describe_noise
    from plaudit.training.noise_runs import LEVELS, make_runs, recipe, settings_to_run

    table = PlanTable.load(path) if path.exists() else PlanTable(recipes={})
    recipes = {learner: recipe(env, learner, keys) for learner in LEVELS}
    if table.recipes.get(env, recipes) != recipes:
        raise DataError(f"{path} has runs of {env} with other keys; name another file with --table")
    runs = list(table.runs)
    done = {(run.env, run.learner, str(run.noise), run.seed) for run in runs}
    settings = settings_to_run(env, more=keys)
    missing = [one for one in settings if (one.env, one.learner, str(one.noise), one.seed) not in done]
    try:
        for count, run in enumerate(make_runs(missing, jobs), 1):
            runs.append(run)
            runs.sort(key=lambda one: (one.env, one.learner))  # ppo, then sac
            table = PlanTable(recipes={**table.recipes, env: recipes}, runs=tuple(runs))
            table.save(path)
            what = describe_noise(run.noise)
            out.print(f"{count} of {len(missing)}: {run.learner}, {what}: {run.success:.0%}")
    except KeyboardInterrupt:
        stop(f"interrupted; {len(runs)} runs are in {path}, and the same command makes the others")
    out.print(f"{path} has {len(runs)} runs; --table {path} takes them again")
    return table
