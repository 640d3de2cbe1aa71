"""`causalab-mini report` and `plot`: a results folder as a page, or as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from causalab_mini.cli import options
from causalab_mini.errors import Problem, RunError

if TYPE_CHECKING:
    from causalab_mini.results.report import Folder

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a run.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""

    @app.command()
    def report(
        out: Out,
        to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="The page. [default: OUT/report.html]")] = None,
        open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    ) -> None:
        """Write a run as one page that needs no network: what was asked, what came out, where, and the rows behind every number."""
        from causalab_mini.results.report import page_of

        path = to or out / "report.html"
        _write(path, page_of(_folder(out)).encode())
        print(path)
        if open_:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())

    @app.command()
    def plot(
        out: Out,
        to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="The folder of the pictures. [default: OUT/plots]")] = None,
        format_: Annotated[str, typer.Option("--format", help="`png` or `svg`.")] = "png",
    ) -> None:
        """Draw the figures of a run's report as pictures."""
        from causalab_mini.results.report import figures_of, picture
        from causalab_mini.results.report.folder import drawn_from

        suffix = options.choice("--format", format_, ("png", "svg"))
        figures = figures_of(_folder(out))
        for figure in figures:
            with drawn_from(out):
                drawn = picture(figure, suffix)
            if drawn is not None:
                path = (to or out / "plots") / f"{figure.name}.{suffix}"
                _write(path, drawn)
                print(path)


def _folder(out: Path) -> Folder:
    from causalab_mini.results.report import Folder

    return Folder(out)


def _write(path: Path, data: bytes) -> None:
    """Writes a file anew, or over the one that an earlier report left."""
    from causalab_mini.results.store import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise RunError(Problem(str(path), "a file that can be written", (error.strerror or str(error)).lower(), code="write")) from None
