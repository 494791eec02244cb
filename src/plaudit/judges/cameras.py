"""The main camera by its names in other stacks, so that a model of one can look at the episodes of another.

RLinf's `.pkl` episodes have `main_images`, its `.npy` trajectories `base_camera`, the built-in tasks `front`.
"""

from collections.abc import Collection

MAIN_CAMERAS = ("main", "base_camera", "front")


def name_of_camera(camera: str, there: Collection[str], others: Collection[str] = ()) -> str:
    """What a model's camera is called among those that are there: its own name, or the one other name of the main one.

    others: cameras that are looked at besides, whose names are taken
    """
    if camera in there or camera not in MAIN_CAMERAS:
        return camera
    same = [name for name in MAIN_CAMERAS if name in there and name not in others]
    return same[0] if len(same) == 1 else camera
