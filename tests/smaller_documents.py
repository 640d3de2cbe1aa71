"""Documents that fail, made as small as they fail: what is shown of a random one."""

import json
import time
from dataclasses import replace
from functools import reduce
from operator import getitem

GONE = object()


def smallest(example, fails, seconds=60.0):
    """Returns an example that still fails, of which no row, key or entry can be taken out, and no sweep made a value.

    A document knows its own parts: this takes seconds where hypothesis, which knows draws alone, takes minutes.

    Args:
        example: one that fails.
        fails: whether another does.
        seconds: how long to go on.
    """
    end, again = time.monotonic() + seconds, True
    while again and time.monotonic() < end:
        again = False
        for path in sorted(_paths(example.as_data()), key=len):
            for data in _simpler(example.as_data(), path):
                if time.monotonic() < end and fails(candidate := replace(example, **data)):
                    example, again = candidate, True
                    break
    return example


def _paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def _simpler(data, path):
    """Yields an example's data with what stands at a path taken out, a sweep made one of its values; nothing where there is no such path."""
    try:
        value = reduce(getitem, path, data)
    except (KeyError, IndexError, TypeError):
        return
    sweep = value.get("sweep") if isinstance(value, dict) else None
    changes = [GONE] if sweep is None else sweep if isinstance(sweep, list) else [0, 1, [0]]
    if path[:2] == ("raw", "model"):
        changes = []
    elif len(path) == 1:
        changes = [None] if path == ("batch_size",) and value is not None else []
    for change in changes:
        copy = json.loads(json.dumps(data))
        here = reduce(getitem, path[:-1], copy)
        if change is GONE:
            del here[path[-1]]
        else:
            here[path[-1]] = change
        yield copy
