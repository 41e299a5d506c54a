"""_ids.py: the checkpoint_id of DCP, which names a run and a step. Pure."""

import os
import re

_STEP = re.compile(r"^(?:.*?[^0-9])?([0-9]+)$")


def step_in(checkpoint_id, run):
    """120, of 120, "120", "step-120" or "RUN/step-120". ValueError: it names no step,
    or lies in another directory than the run."""
    if isinstance(checkpoint_id, int):
        return checkpoint_id
    text = os.fspath(checkpoint_id).rstrip("/")
    directory, name = os.path.split(text)
    if directory and os.path.abspath(directory) != os.path.abspath(run):
        raise ValueError(
            f"checkpoint_id {text!r} is in {directory}, and this is run {run}; "
            'expected is a step ("step-120", "120"), with or without the run before it'
        )
    found = _STEP.match(name)
    if found is None:
        raise ValueError(
            f'checkpoint_id {text!r} names no step; expected is "step-120", "120" or 120'
        )
    return int(found.group(1))


def is_id(checkpoint_id):
    if isinstance(checkpoint_id, int):
        return True
    try:
        name = os.path.basename(os.fspath(checkpoint_id).rstrip("/"))
    except TypeError:
        return False
    return _STEP.match(name) is not None
