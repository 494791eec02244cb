"""`plaudit judge tune`: a vision-language judge that learns from labels."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import (
    MAX_COUNT,
    MAX_SEED,
    AllowCode,
    AllowHost,
    epochs_bar,
    finite,
    open_episodes,
    out,
    starting,
    stop,
    tell,
)
from plaudit.cli.data import EpisodesOption, chosen_ids
from plaudit.cli.exam import ReferenceOption
from plaudit.cli.label import ConfigOption, WordsArgument, named_store

_FLAGS = ("rank", "alpha", "epochs", "batch_size", "lr", "seed")  # handed on as they are

AlphaOption = Annotated[
    float | None,
    typer.Option(min=1e-6, max=1e6, help="What it adds is scaled by alpha / rank.", callback=finite, show_default="32"),
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_COUNT,
        help="Maximum number; it stops early when the validation loss stops falling.",
        show_default="15",
    ),
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="Episodes of a gradient step.", show_default="2")
]
LrOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=10, help="Learning rate; follows a cosine schedule to zero.", callback=finite, show_default="0.0001"
    ),
]


def tune_(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A Qwen3-VL: its folder, or its id where it was fetched before.")],
    words: WordsArgument = None,
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", help="The folder to write: the adapter, which loads as a judge.")
    ] = Path("runs/tuned_judge"),
    config: ConfigOption = None,
    reference: ReferenceOption = None,
    episodes: EpisodesOption = None,
    rank: Annotated[int | None, typer.Option(min=1, max=65_536, help="Of the adapter.", show_default="16")] = None,
    alpha: AlphaOption = None,
    vision: Annotated[bool, typer.Option("--vision", help="Adapt the vision encoder too.")] = False,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    lr: LrOption = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random.")] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Fine-tune a vision-language judge on labeled episodes (LoRA).

    Some episodes are held out to choose the best epoch. The adapter knows its model, its prompt and what it learned
    from: use its folder as --model or --config, calibrate and examine it on other episodes. Ctrl-C stops it at once;
    the same command resumes.
    """
    with starting():
        from plaudit.config import parse
        from plaudit.judges.config import load_judge_config
        from plaudit.judges.epochs import TrainingInterrupted
        from plaudit.judges.vlm.judge import VlmJudgeConfig
        from plaudit.judges.vlm.tune import TuneConfig
        from plaudit.training.reward_model import check_output_path, tune_and_save, work_folder

    check_output_path(output, "--output-dir")
    folder, overrides = named_store(words)
    judge = load_judge_config(config, "vlm", {"model": model}, overrides)
    assert isinstance(judge, VlmJudgeConfig)
    store = open_episodes(folder)
    given: dict[str, Any] = {name: context.params[name] for name in _FLAGS if context.params[name] is not None}
    if reference is not None:
        given["label_sources"] = [who.strip() for who in reference.split(",")]
    job = parse(TuneConfig, {**given, "vision": vision})
    ids = chosen_ids(store, episodes)
    try:
        with epochs_bar(job.epochs) as (watch, _):
            tuned = tune_and_save(store, output, judge, job, watch, watch, ids)
    except (TrainingInterrupted, KeyboardInterrupt):
        stop(f"stopped; run the same command to resume from {work_folder(output)}")
    out.print(
        f"{output}: ROC AUC {tuned.metrics.roc_auc:.3f} after epoch {tuned.best_epoch}, {tuned.before.roc_auc:.3f} "
        f"before, on the {tuned.metrics.episodes} episodes that chose the epoch"
    )
    tell(
        "note",
        f"calibrate it on episodes that it has not learned from (plaudit judge calibrate STORE --config {output} "
        f"--output {output / 'judge.yaml'}), then examine it on others (plaudit judge exam {output} STORE)",
    )
