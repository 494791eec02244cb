"""Makes docs/images/twin_task.png: what the three cameras of a twin see while a simulated person lifts the cube.

python scripts/twin_picture.py docs/images
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.twin.task import TwinTask
from plaudit.rollout.scripted_teleop import ScriptedLeader, ScriptedTeleopConfig

SEED, FIRST, ROWS = 3, 3, 3  # FIRST: tick of the first row
GAP = 6  # pixels between pictures


def main() -> None:
    config: Any = ROBOT_REGISTRY.get("igris_b")()
    params = config.params()
    task = TwinTask("lift", params, SEED)
    leader = ScriptedLeader(task, ScriptedTeleopConfig(patience=1, delay=0, duration=1000))
    joints, report, ticks = np.array(params.start_pose), "", []
    while not report:
        task.step(joints)
        ticks.append([task.image(camera) for camera in params.camera_names])
        target, report = leader()
        joints = joints if target is None else target
    rows = [ticks[n] for n in np.linspace(FIRST, len(ticks) - 1, ROWS).astype(int)]
    framed = np.pad(np.array(rows), ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    picture = np.concatenate([np.concatenate(row, axis=1) for row in framed])[:-GAP, :-GAP]
    path = Path(sys.argv[1]) / "twin_task.png"
    Image.fromarray(picture).quantize(64, Image.Quantize.MAXCOVERAGE, kmeans=2).save(path, "PNG", optimize=True)
    print(path)


if __name__ == "__main__":
    main()
