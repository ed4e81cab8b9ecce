"""Film one episode of a policy."""

import importlib
from pathlib import Path
from typing import Any

from trajstitch.data import environments
from trajstitch.data.trajectories import Metadata
from trajstitch.errors import InputError
from trajstitch.evaluation.evaluate import FIRST_SEED
from trajstitch.evaluation.rollouts import play_policy
from trajstitch.policies.policy import Policy
from trajstitch.storage.atomic import require_free


def require_video(path: Path, metadata: Metadata) -> None:
    """Raise if a video of the data's environment can't be written."""
    needed = ("imageio",) if path.suffix.lower() == ".gif" else ("imageio", "imageio_ffmpeg")
    try:
        for name in needed:
            importlib.import_module(name)
    except ImportError as error:
        raise InputError('a video needs imageio with ffmpeg: pip install "trajstitch[video]"') from error
    environments.make(metadata).close()
    require_free(path, force=True)


def film(policy: Policy, metadata: Metadata, path: Path, seed: int = FIRST_SEED) -> float:
    """Write one episode as a video (mp4, or gif by the file's ending), and return its return."""
    require_video(path, metadata)
    import imageio

    environment = environments.make(metadata, render_mode="rgb_array")
    frames: list[Any] = []

    def render() -> None:
        try:
            frames.append(environment.render())
        except Exception as error:  # the graphics library's own error, which differs from one to the next
            raise InputError(
                f"{environments.environment_id(metadata)} can't be drawn here ({type(error).__name__}: {error}): on a "
                "machine without a screen, set MUJOCO_GL=egl or MUJOCO_GL=osmesa and install its library"
            ) from error

    (total,) = play_policy(policy, [environment], seed, metadata.observation_space, render)
    fps = environment.metadata.get("render_fps", 30)
    environment.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".gif":
        imageio.mimwrite(path, frames, duration=1000 / fps, loop=0)
    else:
        imageio.mimwrite(path, frames, fps=fps, macro_block_size=1)
    return total
