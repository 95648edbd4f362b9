"""`polyencoder COMMAND ...`: what production needs, without ParlAI."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from transformers.utils import logging as transformers_log

from polyencoder.cli.calibrate import calibrate
from polyencoder.cli.check import check
from polyencoder.cli.encode import encode
from polyencoder.cli.evaluate import evaluate
from polyencoder.cli.export import export
from polyencoder.cli.flags import flag_of
from polyencoder.cli.importing import import_model
from polyencoder.cli.index import index, update
from polyencoder.cli.intents import intents
from polyencoder.cli.map import map_candidates
from polyencoder.cli.mine import mine
from polyencoder.cli.overlap import overlap
from polyencoder.cli.prepare_reddit import prepare_reddit
from polyencoder.cli.pretrain import pretrain_encoder
from polyencoder.cli.search import search
from polyencoder.cli.serve import serve
from polyencoder.cli.train import train
from polyencoder.cli.vocab import vocab
from polyencoder.cli.zoo import zoo
from polyencoder.errors import PolyencoderError, first_line
from polyencoder.modeling.cpu.products import remember_few_shapes
from polyencoder.versions import versions_line

__all__ = ["app", "main"]

app = typer.Typer(
    name="polyencoder",
    help="Rankers for dialogue and search, without ParlAI: trained, evaluated, indexed, searched and served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback; what we raise on purpose is one line
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(versions_line())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of this package and those below it, and exit.",
            is_eager=True,
            callback=_version,
        ),
    ] = False,
) -> None:
    """Flags that stand before a command."""


app.command("check")(check)
app.command("vocab")(vocab)
app.command("prepare-reddit")(prepare_reddit)
app.command("pretrain")(pretrain_encoder)
app.command("overlap")(overlap)
app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("import")(import_model)
app.command("export")(export)
app.command("calibrate")(calibrate)
app.command("index")(index)
app.command("update")(update)
app.command("search")(search)
app.command("serve")(serve)
app.command("mine")(mine)
app.command("encode")(encode)
app.command("intents")(intents)
app.command("map")(map_candidates)
app.command("zoo")(zoo)


def main() -> None:
    """Run the command line; an error of ours is one line on standard error and exit code 1."""
    remember_few_shapes()
    if not sys.stderr.isatty():
        transformers_log.disable_progress_bar()  # of loading weights, which a log file has no use for
    try:
        app()
    except PolyencoderError as error:
        flag = flag_of(error.argument, typer.main.get_group(app), "".join(sys.argv[1:2]))
        _end(f"{error} (flag {flag})" if flag else str(error))
    except OSError as error:  # of the system, for a file that no code of ours expected it of
        _end(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else first_line(error))
    except MemoryError as error:
        _end(f"there is not enough memory ({first_line(error)})")


def _end(message: str) -> NoReturn:
    # a name that somebody else gave a file says nothing to the terminal
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in message)
    sys.stderr.write(f"polyencoder: {shown}\n")
    raise SystemExit(1) from None


if __name__ == "__main__":
    main()
