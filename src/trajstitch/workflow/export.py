"""Take a policy away: one file that runs without trajstitch, and the lines of Python that run it.

ONNX runs wherever an ONNX runtime does, safetensors wherever NumPy does. Both hold the network, the standardisation of
observations and the bounds of actions.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trajstitch.errors import InputError
from trajstitch.policies.onnx_model import facts_of, input_dtype, onnx_model, require_onnx
from trajstitch.policies.policy import NO_LIMIT, NetworkPolicy, Policy, checkpoints, load_policies, save_policies
from trajstitch.storage.atomic import replacing, require_free
from trajstitch.storage.checksums import checksum_of_files
from trajstitch.storage.runs import Run, damaged

ENDINGS = (".onnx", ".safetensors")

ONNX_CODE = """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({path!r})
observation = np.zeros((1, {size}), np.{dtype})  # yours, one in each row, its columns in the order of the data
print(session.run(None, {{"observation": observation}})[0])
"""

NUMPY_CODE = """\
import numpy as np
from safetensors.numpy import load_file

part = load_file({path!r})
observation = np.zeros((1, {size}))  # yours, one in each row, its columns in the order of the data
hidden = (observation - part["mean"]) / part["std"]
{limit}hidden = hidden.astype(np.float32)
for layer in range({hidden}):
    hidden = np.maximum(hidden @ part[f"{seed}/{{layer}}/weight"] + part[f"{seed}/{{layer}}/bias"], 0)
unit = np.tanh(hidden @ part["{seed}/{hidden}/weight"] + part["{seed}/{hidden}/bias"]){mean}
low, high = part["low"], part["high"]
print(np.clip(unit * (high - low) / 2 + (high + low) / 2, low, high))
"""

LIMIT_CODE = """\
far = np.maximum(np.abs(hidden) - part["limit"], 0)  # what lies far outside of the data counts less
hidden = np.sign(hidden) * (np.minimum(np.abs(hidden), part["limit"]) + np.log1p(far))
"""

OWN_CODE = """\
import numpy as np
import trajstitch

policy = trajstitch.load_policy({path!r})
observation = np.zeros((1, {size}))  # yours, one in each row, its columns in the order of the data
print(policy.act(observation))
"""


@dataclass(frozen=True, eq=False)
class Exported:
    """A policy in a file of its own."""

    policy: Policy
    path: Path
    why: str
    """Why this policy of a run, in a few words; empty if it was given itself."""

    @property
    def code(self) -> str:
        """The lines of Python that load the file and run the policy, without trajstitch."""
        policy, path = self.policy, str(self.path)
        if not isinstance(policy, NetworkPolicy):
            return OWN_CODE.format(path=path, size=policy.observation_size)
        if self.path.suffix == ".onnx":
            return ONNX_CODE.format(path=path, size=policy.observation_size, dtype=input_dtype(policy))
        gaussian = len(policy.layers[-1][1]) > policy.action_size
        return NUMPY_CODE.format(
            path=path,
            size=policy.observation_size,
            seed=policy.seed,
            hidden=len(policy.layers) - 1,
            limit=LIMIT_CODE if policy.normaliser.limit < NO_LIMIT else "",
            mean=f"[:, :{policy.action_size}]" if gaussian else "",
        )


def export(
    policy: Policy | str | Path,
    path: str | Path,
    *,
    seed: int | None = None,
    checkpoint: int | None = None,
    force: bool = False,
) -> Exported:
    """Write a policy as one file that runs without trajstitch.

    ONNX needs the package onnx (`pip install 'trajstitch[onnx]'`). Its input is named observation, float32 (float64 for
    a policy that standardises in double precision), and its output action, both with any batch size. A row with NaN or
    infinity gets NaN actions.

    Args:
        policy: A policy, the folder of a run, or the file of a checkpoint. Of a run it is what `learn` chose, or else
            that of the last checkpoint with the best score, or, if the run was not evaluated, with the smallest action
            error.
        path: The file to write; its name ends in .onnx or .safetensors.
        seed: Of a run, the policy of this seed.
        checkpoint: Of a run, the policy after this many gradient steps.
        force: Overwrite a file that exists.
    """
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise InputError(f"{target}: a policy's file ends in {' or '.join(ENDINGS)}: choose another name")
    if target.suffix == ".onnx":
        require_onnx()
    require_free(target, force=force)
    if isinstance(policy, str | Path):
        found, why = chosen_policy(Path(policy), seed, checkpoint)
    elif isinstance(policy, Policy):
        if seed is not None or checkpoint is not None:
            raise InputError("`seed` and `checkpoint` choose a policy of a run, but a policy was given itself")
        found, why = policy, ""
    else:
        raise InputError(f"`policy` must be a policy or the folder of a run, not {type(policy).__name__}")
    if not all(np.isfinite(array).all() for array in found.tensors().values()):
        raise InputError(f"the policy of seed {found.seed} holds NaN or infinite weights: its training diverged")
    if target.suffix == ".safetensors":
        save_policies([found], target, force=force)
    elif isinstance(found, NetworkPolicy):
        content = onnx_model(found, facts_of(found))
        with replacing(target, force=force) as fresh:
            fresh.write_bytes(content)
    else:
        raise InputError(f"a {type(found).__name__} is no network and can't be written as ONNX: use .safetensors")
    return Exported(found, target, why)


def chosen_policy(place: Path, seed: int | None = None, checkpoint: int | None = None) -> tuple[Policy, str]:
    """Return a policy of a run (or of a checkpoint's file), and in a few words why this one."""
    if place.is_file():
        if checkpoint is not None:
            raise InputError(f"{place}: is one checkpoint's file, so leave `checkpoint` out")
        return _of_seed(load_policies(place), seed, place)
    run = Run.open(place)
    if run.facts["kind"] == "learn":
        return _learned(run, seed, checkpoint)
    if run.facts["kind"] != "train":
        raise InputError(f"{place}: is a {run.facts['kind']!r} run, which holds no policies: name one of a training")
    found = {int(path.stem): path for path in checkpoints(place) if path.stem.isdecimal()}
    if not found:
        raise InputError(f"{place}: holds no checkpoints yet; continue its training with `resume=True`")
    steps = max(found) if checkpoint is None else checkpoint
    if steps not in found:
        raise InputError(f"{place}: holds no checkpoint of {steps:,} steps, but of {', '.join(map(str, found))}")
    policies = load_policies(found[steps])
    if seed is not None or len(policies) == 1:
        return _of_seed(policies, seed, place)
    return _best(run, policies, last=steps == max(found))


def _learned(run: Run, seed: int | None, checkpoint: int | None) -> tuple[Policy, str]:
    """Return what `learn` chose."""
    if not run.has("result"):
        raise InputError(f"{run.folder}: `learn` has not chosen a policy yet: continue it with `resume=True`")
    result = run.read_json("result")
    with damaged(run.path("result.json")):
        name, methods = str(result["chosen"]), [str(row["name"]) for row in result["table"]]
        policy = str(result["policy"])
    if seed is not None or checkpoint is not None:
        others = ", ".join(str(run.path(one)) for one in methods if run.path(one).is_dir())
        raise InputError(
            f"{run.folder}: its policy is what `learn` chose; for another `seed` or `checkpoint` name the folder "
            f"of a method: {others}"
        )
    return load_policies(chosen_file(run, policy))[0], f"{name}, which `learn` chose"


def chosen_file(run: Run, recorded: str) -> Path:
    """Return the file of the policy that `learn` chose; raise if it isn't the one whose checksum it recorded."""
    file = run.path("policy.safetensors")
    if not file.is_file() or checksum_of_files(file) != recorded:
        raise InputError(
            f"{file}: is another policy than this run has chosen: remove {run.path('result.json')} and "
            "continue with `resume=True` to make it again"
        )
    return file


def _of_seed(policies: list[Policy], seed: int | None, place: Path) -> tuple[Policy, str]:
    if seed is None and len(policies) == 1:
        return policies[0], "the only one"
    for policy in policies:
        if policy.seed == seed:
            return policy, "as you chose"
    seeds = ", ".join(str(policy.seed) for policy in policies)
    if seed is None:
        raise InputError(f"{place}: holds policies of the seeds {seeds}: choose one with `seed`")
    raise InputError(f"{place}: holds no policy of seed {seed}; the seeds are {seeds}")


def _best(run: Run, policies: list[Policy], *, last: bool) -> tuple[Policy, str]:
    """Return the policy with the best score where these were rolled out, else with the smallest action error."""
    if run.has("scores"):
        scores = run.read_json("scores")
        with damaged(run.path("scores.json")):
            for part in scores["checkpoints"]:
                if part["steps"] == policies[0].steps and len(part["scores"]) == len(policies):
                    best = int(np.nanargmax(part["scores"]))
                    return policies[best], f"the best of {len(policies)} in `evaluate`'s episodes"
    errors = run.read_json("action-error") if last and run.has("action-error") else {}
    with damaged(run.path("action-error.json")):
        found = errors.get("action_error", [])
        if len(found) == len(policies) and np.isfinite(found).any():
            best = int(np.nanargmin(found))
            return policies[best], f"the one of {len(policies)} whose actions are nearest to the data's"
    return policies[0], f"the first of {len(policies)}: nothing is known about them"


def described(exported: Exported) -> list[str]:
    """Return in lines what is in the file: the policy, what it takes and what it gives."""
    policy = exported.policy
    name = policy.config.get("policy", type(policy).__name__)
    why = f" ({exported.why})" if exported.why else ""
    lines = [f"{exported.path}: {name}, seed {policy.seed} after {policy.steps:,} steps{why}"]
    dtype = "float32"
    if isinstance(policy, NetworkPolicy):
        dtype = str(input_dtype(policy))
    lines.append(_side("takes", policy.observation_size, dtype, policy.config.get("observation_names")))
    lines.append(_side("gives", policy.action_size, "float32", policy.config.get("action_names")))
    if dtype == "float64":
        lines.append("it takes float64 because some columns lie too far from 0, or are too small or large, for float32")
    return lines


def _side(verb: str, size: int, dtype: str, names: object) -> str:
    listed = f": {json.dumps(names, ensure_ascii=False)[1:-1]}" if isinstance(names, list) else ""
    return f"{verb}  {dtype} [batch, {size}]{listed}"
