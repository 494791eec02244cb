"""Files of somebody else: models, policies, judges, runs and configs that try what only their user may."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from attacks.tally import sample

MODULE, VARIABLE, SECRET = "somebody_elses_code", "SOMEBODYS_SECRET", "hunter2-is-the-secret"
URL = "http://{host}/v1"
CODE = f"{MODULE}:Thing"


def files_of_somebody(folder: Path, rng: np.random.Generator, quick: bool) -> dict[str, list[list[str]]]:
    """What they try -> commands on such files."""
    written = Files(folder / "theirs")
    code = [
        *judges(written, {"type": CODE}),
        *policies(written, {"type": CODE}, {"type": "scripted", "function": CODE}),
        *runs(written, {"robot": {"type": CODE}}, {"learner": {"type": CODE}}, {"judge": {"type": CODE}}),
        *runs(written, {"policy": {"inference": {"type": CODE}}}),
        *runs(written, {"robot": {"type": "sim", "env": {"type": CODE}}}, {"teleop": {"type": CODE}}),
        *runs(written, {"robot": {"type": "sim", "env": {"type": "gymnasium", "id": f"{MODULE}:Task-v0"}}}),
        *runs(written, {"robot": {"type": "lerobot", "robot_type": "x", "module": MODULE}}),
        *models(written, {"type": CODE}),
        *trainings(written, {"env": {"type": CODE}}, {"env": {"type": "gymnasium", "id": f"{MODULE}:T-v0"}}),
        *trainings(written, {"learner": {"type": CODE}}),
        ["train-reward", "store", "--config", written.yaml({"encoder": {"type": CODE}}), "--output-dir", "new"],
    ]
    templates = [f"${{oc.env:{VARIABLE}}}", f"${{oc.decode:${{oc.env:{VARIABLE}}}}}", "${${a}:" + VARIABLE + "}"]
    templates += [f"x${{oc.env:{VARIABLE},1}}y", "${oc.env:${a}}", f"${{ oc.env : {VARIABLE} }}"]
    secrets = [line for template in templates for line in judges(written, {"type": template})]
    secrets += [line for t in templates for line in policies(written, {"type": "openpi", "openpi_model": {"host": t}})]
    for variable in (VARIABLE, "AWS_SECRET_ACCESS_KEY", "HOME", ""):
        secrets += judges(written, endpoint("127.0.0.1:9", api_key_env=variable))
    for url in (f"me:{SECRET}@127.0.0.1:9", f"127.0.0.1:9/?api_key={SECRET}&x=1"):
        secrets += judges(written, endpoint(url))
    hosts = [
        "203.0.113.9",
        "evil.example",
        "localhost.evil.example",
        "[2001:db8::9]",
        "0x7f.1",
        "127.0.0.1.evil.example",
    ]
    servers = [line for host in hosts for line in judges(written, endpoint(host))]
    for host in hosts:
        servers += policies(written, {"type": "openpi", "action_dim": 1, "openpi_model": {"host": host}})
    servers += judges(written, {"type": "vlm", "model": "somebody/model", "local_files_only": False})
    servers += models(written, {"type": "transformers", "name": "somebody/model", "download": True})
    tried = {"import code": code, "read variables": secrets, "call servers": servers}
    if not quick:
        return tried
    light = {what: [line for line in lines if line[0] in ("label", "judge", "run")] for what, lines in tried.items()}
    return {what: sample(lines, rng, 12) for what, lines in light.items()}


def endpoint(host: str, **more: str) -> dict[str, Any]:
    address = {"base_url": URL.format(host=host), "retries": 0, "timeout": 1.0, **more}
    return {"type": "vlm", "backend": "openai", "model": "m", "endpoint": address}


class Files:
    """Numbered ones."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.folder, self.count = folder, 0

    def new(self, suffix: str = "") -> Path:
        self.count += 1
        return self.folder / f"{self.count}{suffix}"

    def yaml(self, tree: dict[str, Any]) -> str:
        path = self.new(".yaml")
        path.write_text(json.dumps(tree))
        return str(path)


def judges(files: Files, *trees: dict[str, Any]) -> list[list[str]]:
    found = []
    for tree in trees:
        path = files.yaml(tree)
        found += [["label", "store", "--config", path], ["judge", "eval", "store", "--config", path, "-o", "new"]]
        found += [["judge", "calibrate", "store", "--config", path, "-o", "new.yaml"]]
    return found


def policies(files: Files, *trees: dict[str, Any]) -> list[list[str]]:
    found = []
    for tree in trees:
        path = files.yaml({"policy": tree})
        sim = ["robot.env.type=lift", "policy.inference.realtime=false", "--steps", "2", "--store", "new"]
        found += [["run", "--robot", "sim", "--inference_algorithm", "sequential", "--policy_yaml", path, *sim]]
    return found


def runs(files: Files, *trees: dict[str, Any]) -> list[list[str]]:
    """As a config, and as the folder of a run."""
    found = []
    whole = {"robot": {"type": "sim", "env": {"type": "lift"}}, "learner": {"type": "sac"}, "judge": {"type": "human"}}
    for tree in trees:
        run = files.new()
        run.mkdir()
        (run / "config.yaml").write_text(json.dumps({"schedule": "online"} | whole | tree))
        found += [["online", "--config", files.yaml(whole | tree), "--serial", "--folder", str(files.new())]]
        found += [["online", "--resume", str(run), "--serial"], ["report", str(run)], ["eval", str(run)]]
    return found


def trainings(files: Files, *trees: dict[str, Any]) -> list[list[str]]:
    whole = {"env": {"type": "lift"}, "learner": {"type": "sac"}, "run": {"max_steps": 10}}
    return [["train", "--config", files.yaml(whole | tree), "--folder", str(files.new())] for tree in trees]


def models(files: Files, encoder: dict[str, Any]) -> list[list[str]]:
    """As a folder, and as a single file."""
    import torch

    facts = {
        "classifier": {"encoder": encoder, "cameras": {"front": [16, 16]}},
        "frozen_encoder": True,
        "calibration": [[1.0, 0.0]],
        "threshold": {"value": 0.5},
        "scores": {},
        "controls": [],
        "problems": [],
        "training": {},
        "data": {"fingerprint": "x", "episodes": {}, "frames": {}, "sources": []},
    }
    folder, file = files.new(), files.new(".pt")
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps(facts))
    torch.save({"model_state_dict": {"a": torch.zeros(1)}, "plaudit": facts}, file)
    return [["label", "store", "--judge", "classifier", "--model", str(path)] for path in (folder, file)]
