"""What is kept of a finished point beside its results, and why a point runs (again).

A point is finished once its file in `.points/` is there: that is written last, and says what the results were made with (the key), which
files they are, and what of the point stands in `summary.json` and `run.json`. So a run that was killed anywhere goes on with the points
that have none, and nothing is rewritten as a sweep grows.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from causalab_mini import __version__
from causalab_mini.data.opening import read_file
from causalab_mini.data.strict_json import sha256_of
from causalab_mini.errors import quoted
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.layout import differences
from causalab_mini.results.record import package_sha256
from causalab_mini.results.store import CHECKPOINTS, DOCUMENT, FINISHED, POINTS, RECORD, RunFolder, json_bytes

ALONE = "point"
"""What the file of a point without label is called; labels have a `=`."""


@dataclass(slots=True)
class Finished:
    """What is known of a finished point.

    Attributes:
        label: of the point.
        key: what its results were made with; they are kept as long as that is the same.
        meaning: the document of the point, of which the key has the digest.
        summary: entries of `summary.json`, by section.
        steps: entries of `run.json`.
        warnings: for the user.
        files: size and checksum of each file, by name below the folder; results first.
        engine: what the engine said of itself.
    """

    label: str
    key: Mapping[str, Any]
    meaning: Mapping[str, Any]
    summary: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"metrics": []})
    steps: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def note(self, name: str, data: bytes) -> None:
        """Notes a file that has been written."""
        self.files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    @property
    def results(self) -> list[str]:
        """Names of the files of results."""
        return [name for name in self.files if not name.startswith(f"{CHECKPOINTS}/")]

    def as_bytes(self) -> bytes:
        """Returns the file of the point; it has a checksum of itself."""
        data = {name: getattr(self, name) for name in self.__slots__}
        return json_bytes({**data, "sha256": sha256_of(data)}, None)


def finished_name(label: str) -> str:
    """Returns the name of a point's file below the folder."""
    return f"{FINISHED}/{label or ALONE}.json"


def read_finished(folder: RunFolder, label: str) -> Finished | str | None:
    """Returns what is known of a point, None where it has no file, or what is wrong with that, in words."""
    name = finished_name(label)
    try:
        data = json.loads(read_file(folder.path / name))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        return f"{quoted(name)} can't be read ({error})"
    sha256 = data.pop("sha256", None) if isinstance(data, dict) else None
    if sha256 is None or set(data) != set(Finished.__slots__) or sha256 != sha256_of(data) or data["label"] != label:
        return f"{quoted(name)} is not what was written"
    return Finished(**data)


def key_of(point: nodes.PlannedPoint, request: nodes.Request) -> dict[str, Any]:
    """Returns what a point's numbers are made with: checks and the sizes of batches are no part of it."""
    facts = request.facts
    return {
        "digest": point.digest,
        "tables": {ref: request.tables[ref].sha256 for ref in point.tables if ref in request.tables},
        "files": {path: request.files[path] for path in point.files if path in request.files},
        "revision": facts.revision,
        "dtype": facts.dtype,
        "attn_implementation": facts.attn_implementation,
        "package": f"{__version__} ({package_sha256()[:12]})",
    }


def why_again(before: Finished, point: nodes.PlannedPoint, key: Mapping[str, Any]) -> str:
    """Returns what of a finished point's key has changed, in words; nothing where it is the same."""
    if before.key == key:
        return ""
    then = before.key
    changed = [path for path, _, _ in differences(before.meaning, json.loads(json.dumps(point.meaning)))]
    own = [path for path in changed if path not in ("model.revision", "model.dtype")]
    if then["digest"] != key["digest"] and (own or not changed):
        more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
        return f"document changed at {quoted(own[0] if own else 'steps')}{more}"
    for name, what in (("tables", "data"), ("files", "featurizer")):
        if other := [path for path in {**then[name], **key[name]} if then[name].get(path) != key[name].get(path)]:
            return f"{what} changed: {', '.join(map(quoted, other))}"
    for name, what in (("revision", "revision"), ("dtype", "dtype"), ("attn_implementation", "attention"), ("package", "package")):
        if then[name] != key[name]:
            return f"{what} changed from {quoted(then[name])} to {quoted(key[name])}"
    return f"revision changed from {quoted(before.meaning['model'].get('revision'))} to {quoted(point.meaning['model'].get('revision'))}"


@dataclass(slots=True)
class Continued:
    """What a run finds in its folder.

    Attributes:
        kept: by label, the points whose results stay as they are.
        why: by label, why each of the others runs.
        stale: labels of results that are those of another key, or of a point that the document does not have.
    """

    kept: dict[str, Finished]
    why: dict[str, str]
    stale: list[str]


def find_kept(folder: RunFolder, request: nodes.Request, fresh: bool = False) -> Continued:
    """Returns which points of a folder are kept, and why the others run. Changes nothing.

    Args:
        folder: of the run.
        request: what is to be run.
        fresh: whether all are run anew.
    """
    record, listed = folder.read_json(RECORD), folder.read_json(POINTS)
    owner = record.get("digest") if isinstance(record, dict) else None
    known = (
        {label for label in listed if is_below(label) and "/" not in label}
        if isinstance(listed, dict)
        else {""}
        if owner is not None
        else set[str]()
    )
    found = Continued({}, {}, [])
    for point in request.points:
        key, label = key_of(point, request), point.label
        before = read_finished(folder, label)
        if isinstance(before, Finished):
            changed = why_again(before, point, key)
            if changed:
                found.stale.append(label)
            reason = changed or next((fault for name, one in before.files.items() if (fault := folder.fault(name, **_size(one)))), "")
            if reason and not changed:
                reason = f"incomplete: {reason}"
            if not reason and not fresh:
                found.kept[label] = before
                continue
        elif before is not None:
            reason = f"incomplete: {before}"
        else:
            reason = "incomplete" if label in known else "new"
            if label in known and owner not in (None, request.digest):
                found.stale.append(label)  # left by a run of another document
        found.why[label] = "--fresh" if fresh else reason
    labels = {point.label for point in request.points}
    finished = {"" if file.stem == ALONE else file.name.removesuffix(".json") for file in (folder.path / FINISHED).glob("*.json")}
    found.stale += sorted((known | finished) - labels)
    return found


def set_aside(folder: RunFolder, label: str) -> bool:
    """Moves what a point has left to `earlier/`, what is known of it last; returns whether there was anything."""
    before = read_finished(folder, label)
    names = [label, f"{CHECKPOINTS}/{label}"] if label else []
    if not label:
        names = [*(before.files if isinstance(before, Finished) else ()), *_saved_names(folder)]
    moved = [folder.set_aside(name) for name in dict.fromkeys(names) if is_below(name)]
    return any([*moved, folder.set_aside(finished_name(label))])


def is_below(name: str) -> bool:
    """Returns whether a name is that of something below a folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _saved_names(folder: RunFolder) -> Iterator[str]:
    """Yields what the document of a folder without sweep saves, wherever an intervention's name stands before it."""
    raw = folder.read_json(DOCUMENT)
    steps = raw.get("steps") if isinstance(raw, dict) else None
    for name, step in steps.items() if isinstance(steps, dict) else ():
        evaluation = step.get("eval") if isinstance(step, dict) else None
        for owner in (step, evaluation):
            saves = owner.get("saves", ()) if isinstance(owner, dict) else ()
            paths = [save["file_path"] for save in saves if isinstance(save, dict) and isinstance(save.get("file_path"), str)]
            for path in filter(is_below, paths):
                yield path
                yield from (
                    str(file.relative_to(folder.path)) for file in folder.path.glob(f"*/{glob.escape(path)}") if "=" not in file.parent.name
                )
        yield f"{CHECKPOINTS}/{name}.safetensors"
        yield f"{CHECKPOINTS}/{name}.curves.json"


def _size(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"n_bytes": one["bytes"], "sha256": one["sha256"]}
