"""`causalab-mini explain`: what a document will do, without weights."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from causalab_mini.cli import options


def _schedule_lines(*lines: str) -> list[str]:
    return [line for line in lines if line]


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def explain(
        document: options.Document,
        data_root: options.DataRoot = None,
        set_: options.Set = None,
        trust_remote_code: options.TrustRemoteCode = False,
        schedule: Annotated[
            bool, typer.Option("--schedule", help="Print the passes that are run instead, and what each rewrite saved.")
        ] = False,
        as_json: options.AsJson = False,
    ) -> None:
        """Print the plan of a document: every forward, read and write, with positions as they were written.

        Opens the checkpoint's config and tokenizer, no weights; finds every position in every row, and refuses what does not fit.
        """
        from causalab_mini.experiment import Options, load
        from causalab_mini.plan.explain import explain as explain_text
        from causalab_mini.plan.explain import explain_data

        loaded = load(
            document, data_root=data_root, overrides=options.overrides(set_), options=Options(trust_remote_code=trust_remote_code)
        )
        request, schedules, _ = loaded.compile()
        if schedule:
            from causalab_mini.schedule.physical import plain_schedule
            from causalab_mini.schedule.printed import attribution_lines, data, fit_lines, generation_lines, probe_lines, stream_lines, text
            from causalab_mini.schedule.repeated import fit_costs
            from causalab_mini.schedule.rewrites import REWRITES, rewrite

            found = rewrite(plain_schedule(request, schedules))
            fits = list(fit_costs(request, schedules, REWRITES))
            print(
                json.dumps(data(found, fits), indent=1)
                if as_json
                else "\n".join(
                    _schedule_lines(
                        text(found) if found.passes else "",
                        *generation_lines(found),
                        *fit_lines(fits),
                        *attribution_lines(request),
                        *stream_lines(request),
                        *probe_lines(request),
                    )
                )
            )
            return
        print(json.dumps(explain_data(request), indent=1, ensure_ascii=False) if as_json else explain_text(request))
