"""`plaudit judge exam`: the fixed suite, and the certificate that comes of it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plaudit.cli.common import AllowCode, AllowHost, check_episodes, open_episodes, out, progress, stop, tell
from plaudit.cli.data import EpisodesOption, chosen_ids
from plaudit.cli.label import check_output_path, free_folder
from plaudit.errors import DataError, JudgeError

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.judges.certificate import Certificate
    from plaudit.judges.config import JudgeConfig
    from plaudit.judges.exam import Trace

EXAMS = Path("runs/judge_exam")

ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Sources of the reference labels, like 'human,cutoff'.", show_default="human,simulator,dataset,cutoff"
    ),
]


def exam_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JUDGE... STORE [KEY=VALUE]...",
            help="Judges: folders or files, or names as for --judge of 'plaudit label'; a store or a data set with "
            "reference labels; then keys of the judges' configs.",
        ),
    ] = None,
    reference: ReferenceOption = None,
    episodes: EpisodesOption = None,
    other_task: Annotated[
        Path | None, typer.Option(help="A store of another task's episodes: none of their frames shows success.")
    ] = None,
    wrong_task: Annotated[
        str | None, typer.Option(help="A task that no episode shows, as a control for judges that use the task text.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the certificate that is there is of this judge and data.")
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="The folder to write; runs/judge_exam/NAME_N when not given."),
    ] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Examine judges on episodes that they have not seen, and write a certificate for each.

    The suite is fixed: metrics of frames and episodes, each with an interval over episodes, and all controls. Writes
    report.html and the certificates, and puts each certificate beside its judge, where 'train', 'online' and 'label'
    find it. Ctrl-C keeps the scores so far, and the same command resumes. Returns 1 when a judge did not pass.
    """
    from plaudit.judges.exam import rank
    from plaudit.report.exam import save_exam

    names, folder, overrides = _judges_and_store(words or [])
    check_episodes(folder)
    check_output_path(output_dir)
    judges = [_load(word, overrides) for word in names]
    store = open_episodes(folder)
    asked = None if reference is None else [who.strip() for who in reference.split(",")]
    ids = chosen_ids(store, episodes)
    if check:
        _check(store, names, judges, asked, ids)
        return
    other = None if other_task is None else open_episodes(other_task)
    found: list[tuple[Certificate, list[Trace]]] = []
    placed: dict[str, Path] = {}  # name on the page -> where its certificate belongs
    kept = [_kept_scores(output_dir, shown) for shown in _short_names(names)]
    try:
        for word, shown, config, scores in zip(names, _short_names(names), judges, kept, strict=True):
            try:
                found.append(_examine(store, config, shown, scores, asked, ids, other, wrong_task))
            except JudgeError as error:
                if len(names) == 1:
                    raise
                raise JudgeError(f"{shown}: {error}") from error
            if Path(word).exists() and not overrides:
                placed[shown] = Path(word)
    except KeyboardInterrupt:
        stop("interrupted; the scores so far are kept, run the same command to resume")
    found.sort(key=lambda one: rank(one[0]))
    title = found[0][0].name if len(found) == 1 else f"{len(found)}_judges"
    target = output_dir or free_folder(EXAMS, title)
    save_exam(target, found)
    for path in kept:
        path.unlink(missing_ok=True)  # a judge may be named twice
    _tell_exam([certificate for certificate, _ in found], target, placed)


def _kept_scores(output_dir: Path | None, name: str) -> Path:
    """Where the scores of a judge are until its exam is done."""
    folder, file_name = EXAMS if output_dir is None else output_dir.parent, re.sub(r"[^\w.-]", "_", name)
    return folder / f".{file_name}.scores"


def _judges_and_store(words: Sequence[str]) -> tuple[list[str], Path, list[str]]:
    named = [word for word in words if "=" not in word]
    if len(named) < 2:
        raise DataError("name a judge, or several, and then a store: plaudit judge exam runs/reward_model episodes")
    return named[:-1], Path(named[-1]), [word for word in words if "=" in word]


def _short_names(words: Sequence[str]) -> list[str]:
    """The last part of each, or all of it where two are alike."""
    short = [Path(word).stem if Path(word).is_file() else Path(word).name for word in words]
    return [word if short.count(one) > 1 or not one else one for one, word in zip(short, words)]


def _load(word: str, overrides: Sequence[str]) -> "JudgeConfig":
    """A judge that failed its own checks is examined too."""
    from plaudit.judges.config import load_named_judge

    return load_named_judge(word, overrides).model_copy(update={"force": True})


def _examine(
    store: "Store",
    config: "JudgeConfig",
    name: str,
    kept: Path,
    asked: Sequence[str] | None,
    ids: Sequence[int],
    other: "Store | None",
    wrong_task: str | None,
) -> "tuple[Certificate, list[Trace]]":
    from plaudit.judges.config import judge_warnings
    from plaudit.judges.evaluation import resolve_reference
    from plaudit.judges.exam import examine

    built = config.build()
    for sentence in judge_warnings(config, built):
        tell("warning", f"{name}: {sentence}")
    sources = resolve_reference(asked, built.id.source)
    return examine(
        store,
        config,
        built,
        sources,
        ids,
        name=name,
        other_task=other,
        wrong_task=wrong_task,
        kept=kept,
        progress=lambda what: progress(f"{name}: {what}"),
    )


def _check(
    store: "Store",
    names: Sequence[str],
    judges: "Sequence[JudgeConfig]",
    asked: Sequence[str] | None,
    ids: Sequence[int],
) -> None:
    from plaudit.judges.certificate import certificate_beside, load_certificate
    from plaudit.judges.evaluation import resolve_reference
    from plaudit.judges.exam import check_data

    for word, config in zip(names, judges, strict=True):
        built = config.build()
        path = certificate_beside(Path(word))
        certificate = load_certificate(path, built.id)
        check_data(path, certificate, store, config, built, resolve_reference(asked, built.id.source), ids)
        out.print(f"{path} is of this judge and this data; {certificate.line}")


def _tell_exam(certificates: "Sequence[Certificate]", target: Path, placed: dict[str, Path]) -> None:
    from plaudit.judges.certificate import certificate_beside
    from plaudit.report.exam import exam_table

    out.print(exam_table(certificates))
    for certificate in certificates:
        for sentence in certificate.notes:
            tell("note", f"{certificate.name}: {sentence}")
        for sentence in certificate.problems:
            tell("problem", f"{certificate.name}: {sentence}")
        if certificate.name in placed:
            path = certificate_beside(placed[certificate.name])
            certificate.save(path)
            out.print(f"{certificate.name}: the certificate is {path}")
    out.print(f"see {target / 'report.html'}")
    if not all(certificate.passed for certificate in certificates):
        raise typer.Exit(1)
