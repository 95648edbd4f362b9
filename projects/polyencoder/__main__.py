"""`python -m polyencoder COMMAND ...`: the command `polyencoder`, where scripts are not on the path."""

from __future__ import annotations


def main() -> None:
    """Runs the command line, which polyencoder-runtime has with its extra `serve`."""
    try:
        from polyencoder.cli.main import main
    except ModuleNotFoundError as error:
        if error.name != "cyclopts":
            raise
        raise SystemExit("polyencoder: no command is installed: pip install 'polyencoder-runtime[serve]'") from None
    main()


if __name__ == "__main__":
    main()
