"""The main camera by its names in other stacks, so that episodes of one can be learned from and judged as another's.

RLinf's `.pkl` episodes have `main_images`, which is read as `main`, its `.npy` trajectories `base_camera`, the built-in
tasks `front`. Whoever asks for one of these gets the one that is there, under the name that was asked for.
"""

from collections.abc import Collection

OUR_MAIN_CAMERA = "front"
MAIN_CAMERAS = ("main", "main_images", "base_camera", OUR_MAIN_CAMERA)


def name_of_camera(camera: str, there: Collection[str], others: Collection[str] = ()) -> str:
    """What a camera is called among those that are there: its own name, or the one other name of the main one.

    others: cameras that are asked for besides, whose names are taken
    """
    if camera in there or camera not in MAIN_CAMERAS:
        return camera
    same = [name for name in MAIN_CAMERAS if name in there and name not in others]
    return same[0] if len(same) == 1 else camera
