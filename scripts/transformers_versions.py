"""Whether the oldest supported version of transformers gives the scores of the installed one.

    python scripts/transformers_versions.py            # installs the oldest one into a temporary folder (80 MB)

The tiny models of the tests are saved once. Each version reads them in a process of its own and scores one episode.
The answer is the largest difference of each judge type; 0.001 is allowed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ALLOWED = 1e-3


def compare(folder: Path) -> int:
    """Score under both versions, and print the differences."""
    extra = re.search(r'^vlm = \["transformers>=([\d.]+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert extra is not None, "pyproject.toml names the oldest version in the extra vlm"
    version = extra[1] if extra[1].count(".") == 2 else f"{extra[1]}.0"
    oldest = folder / "oldest"
    install = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-warn-conflicts", "-q"]
    wanted = (f"transformers=={version}", f"numpy=={_installed('numpy')}")  # torch stays the installed one
    subprocess.run([*install, "--target", oldest, *wanted], check=True)
    scores = []
    for path in ((), (oldest,)):
        out = folder / f"scores{len(scores)}.json"
        places = os.pathsep.join(map(str, (*path, ROOT / "src", ROOT / "tests")))
        command = [sys.executable, __file__, folder / "models", out]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": places})
        scores.append(json.loads(out.read_text()))
    newest, older = scores
    print(f"transformers {newest.pop('version')} and {older.pop('version')}, largest difference of the scores:")
    differences = {
        name: max(abs(a - b) for a, b in zip(values, older[name], strict=True)) for name, values in newest.items()
    }
    for name, difference in differences.items():
        print(f"  {name:12} {difference:.1e}")
    return int(max(differences.values()) > ALLOWED)


def _installed(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def score(home: Path, out: Path) -> None:
    """Write the scores of all models of a folder under the version that this process imports."""
    import transformers

    import small_rewards
    from plaudit.judges.published import config as configs
    from tiny_vlm import moving

    if not home.exists():
        _save_models(home)
    options: dict[str, Any] = {"device": "cpu"}
    words: dict[str, Any] = {"model": str(home / "words"), "fps": 2.0, **options}
    encoders: dict[str, Any] = {"base": str(home / "dino"), "text_model": str(home / "minilm")}
    judges = [
        configs.RobometerConfig(model=str(home / "robometer"), **options),
        configs.RynnValueConfig(model=str(home / "rynnvalue"), horizon_s=60, **options),
        configs.RoboRewardConfig(variant="expectation", **words),
        configs.TopRewardConfig(**words),
        configs.SarmConfig(model=str(home / "sarm"), base=str(home / "clip"), **options),
        configs.RewindConfig(model=str(home / "rewind.pth"), **encoders, **options),
    ]
    result = {"version": transformers.__version__}
    for config in judges:
        small = config.type in ("sarm", "rewind")
        episode = small_rewards.colored(7) if small else moving(steps=7, size=(70, 100))
        (scores,) = config.build().score([episode])
        progress = [] if scores.progress is None else scores.progress.tolist()
        result[config.type] = [*scores.success_prob.tolist(), *progress]
    out.write_text(json.dumps(result))


def _save_models(home: Path) -> None:
    import published_folders
    import small_rewards

    home.mkdir()
    published_folders.save_robometer(home / "robometer")
    published_folders.save_rynnvalue(home / "rynnvalue")
    for part in published_folders.tiny_model():
        part.save_pretrained(home / "words")
    small_rewards.save_clip(home / "clip")
    small_rewards.save_dino(home / "dino")
    small_rewards.save_minilm(home / "minilm")
    small_rewards.save_sarm(home / "sarm")
    small_rewards.save_rewind(home / "rewind.pth")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        score(Path(sys.argv[1]), Path(sys.argv[2]))
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(compare(Path(temporary)))
