"""The entry scripts at the repository's root: `plaudit online` under the flags that robot labs know.

    python run_online_rl.py --robot igris_b --inference_algorithm rtc --train_config my_run.yaml

They add nothing but defaults, so that what is said of `plaudit online` holds for them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from plaudit.cli.common import AllowCode, AllowHost, AllowUntrained, Auto, run_app
from plaudit.cli.online import DEFAULT_ALGORITHM, RAY, online


def run_script(
    description: str, *, train_config: Path, policy_yaml: Path | None = None, always: Sequence[str] = ()
) -> NoReturn:
    """
    description: for --help
    train_config, policy_yaml: what these flags are by default
    always: `a.b=c` overrides that make it this script
    """
    config_default, policy_default = train_config, policy_yaml
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command(help=description)
    def script(
        overrides: Annotated[
            list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config; they win.")
        ] = None,
        *,
        robot: Annotated[str, typer.Option("--robot", help="igris_b, igris_c, sim, lerobot, or my_module:MyConfig.")],
        inference_algorithm: Annotated[
            str | None,
            typer.Option(
                "--inference_algorithm",
                help="rtc: infer while the robot moves; sequential: it waits meanwhile.",
                show_default=DEFAULT_ALGORITHM,
            ),
        ] = None,
        train_config: Annotated[
            Path, typer.Option("--train_config", help="The run as YAML; see examples/configs.")
        ] = config_default,
        policy_yaml: Annotated[Path | None, typer.Option("--policy_yaml", help="A policy's file.")] = policy_default,
        inference_runtime_params_config: Annotated[
            Path | None,
            typer.Option("--inference_runtime_params_config", help="JSON; the robot's own when not given."),
        ] = None,
        inference_runtime_topics_config: Annotated[
            Path | None,
            typer.Option("--inference_runtime_topics_config", help="JSON; the robot's own when not given."),
        ] = None,
        human_reward_labeler: Annotated[
            bool, typer.Option("--human_reward_labeler", help="A person judges in a window, and no model.")
        ] = False,
        auto: Auto = None,
        allow_untrained: AllowUntrained = False,
        allow_code: AllowCode = None,
        allow_host: AllowHost = None,
    ) -> None:
        online(
            [*(overrides or []), *always],
            config=train_config,
            robot=robot,
            algorithm=inference_algorithm,
            policy_yaml=policy_yaml,
            params=inference_runtime_params_config,
            topics=inference_runtime_topics_config,
            human=human_reward_labeler,
            auto=auto,
            allow_untrained=allow_untrained,
            ray=os.environ.get(RAY, "auto"),
        )

    run_app(app)
