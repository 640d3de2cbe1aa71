"""A recording as a folder: records, index, generations, summary, and the record of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from causalab_mini.data.strict_json import sha256_of
from causalab_mini.evidence.memory import peak_memory_bytes
from causalab_mini.probing.request import Request
from causalab_mini.probing.run.recording import Recording
from causalab_mini.probing.spec import to_yaml
from causalab_mini.results.record import package_sha256, versions
from causalab_mini.results.store import RECORD, SUMMARY, RunFolder
from causalab_mini.results.tables import table_bytes

SPEC, RECORDS, INDEX, GENERATED, VERDICTS = "spec.yaml", "records.safetensors", "records.json", "generated.json", "verdicts.json"


class RecordingFolder:
    """The folder of a request: new, empty, or of the very same request. Its files are written once all numbers are there.

    Args:
        path: of the folder.
        request: that it is of.
        options: how it is carried out, for the record.
        wait: whether another run's end is waited for.
        on_waiting: told who has the folder, before that.

    Raises:
        UsageError: the folder holds something else, or another run has it.
        RunError: it can't be made.
    """

    def __init__(
        self,
        path: Path,
        request: Request,
        options: Mapping[str, Any],
        wait: bool = False,
        on_waiting: Callable[[str], None] = lambda who: None,
    ) -> None:
        self.request = request
        self.options = options
        self.started = datetime.now(UTC)
        self.folder = RunFolder.open(path, request.digest, wait=wait, on_waiting=on_waiting)

    def begin(self) -> None:
        """Writes that the run has begun."""
        self.record("running")

    def close(self) -> None:
        """Gives the folder free."""
        self.folder.close()

    def end(self, recording: Recording, tokenizer: Any, sinks: Sequence[Mapping[str, Any]] = ()) -> list[Path]:
        """Writes a recording, and returns the files; `sinks` is what the record says of where verdicts went."""
        from safetensors.torch import save

        tensors = {name: tensor.contiguous() for name, tensor in recording.tensors.items()}
        said = [
            {
                "request": number,
                "prompt": prompt.text,
                "n_prompt_tokens": prompt.n_tokens,
                "text": one.text,
                "ids": list(one.ids),
                "ended": one.ended,
                **({"aborted_by": abort.point, "reason": abort.reason} if (abort := recording.aborts.get(number)) else {}),
            }
            for number, (prompt, one) in enumerate(zip(self.request.prompts, recording.generated, strict=True))
        ]
        summary = {"digest": self.request.digest, "points": recording.summary()}
        records = {RECORDS: bytes(save(tensors, metadata={"digest": self.request.digest})), INDEX: _lines(recording.index(tokenizer))}
        files = {  # all of them before the first is written
            **(records if self.request.recorded else {}),
            **({VERDICTS: _lines(recording.verdict_lines(tokenizer))} if self.request.watched.probes else {}),
            GENERATED: table_bytes(said, ".json"),
            SPEC: to_yaml(self.request.spec).encode(),
        }
        for name, data in files.items():
            self.folder.write(name, data)
        self.folder.write_json(SUMMARY, summary)
        told = {"sinks": list(sinks)} if sinks else {}
        self.record("finished", {**recording.engine, "n_forwards": recording.n_forwards, **told})
        return sorted(self.folder.written, key=lambda path: path.name)

    def record(self, status: str, more: Mapping[str, Any] | None = None) -> None:
        """Writes the record of the run: `running`, `finished`, `failed` or `interrupted`."""
        request, facts = self.request, self.request.facts
        data = {
            "status": status,
            "digest": request.digest,
            "spec_sha256": sha256_of(request.watched.spec_data),
            **(
                {"probe_files": files}
                if (files := {name: dict(probe.checksums) for name, probe in request.watched.probes.items() if probe.checksums})
                else {}
            ),
            "model": {"key": facts.key, "revision": facts.revision, "dtype": facts.dtype},
            **(more or {}),
            "versions": versions(),
            "package_sha256": package_sha256(),
            "decode": request.decode.model_dump(mode="json"),
            "options": dict(self.options),
            "process": os.getpid(),
            "n_requests": len(request.prompts),
            "n_points": len(request.spec),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 3),
            "peak_memory_bytes": peak_memory_bytes(),
        }
        self.folder.write_json(RECORD, data)


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns a table as JSON with a row a line: there may be very many."""
    return ("[" + ",".join("\n" + json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n").encode()
