"""`causalab-mini doctor`: whether this installation is one that was tested, and what to do where it is not."""

from __future__ import annotations

import json
import sys

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_RUN_FAILED


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def doctor(as_json: options.AsJson = False) -> None:
        """Examine the installation: versions, whether the engine imports, devices, hub cache, bundled models."""
        from causalab_mini.doctor import examine

        findings = examine()
        if as_json:
            print(json.dumps([finding.as_data() for finding in findings], indent=1, ensure_ascii=False))
        else:
            for finding in findings:
                print(f"{finding.status:<5} {finding.what}: {finding.text}")
                if finding.fix:
                    print(f"      fix: {finding.fix}")
        if any(finding.status == "wrong" for finding in findings):
            sys.exit(EXIT_RUN_FAILED)
