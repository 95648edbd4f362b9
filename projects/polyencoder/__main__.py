"""`python -m polyencoder COMMAND ...`: the command `polyencoder`, where scripts are not on the path."""

from __future__ import annotations

from polyencoder.cli.main import main

if __name__ == "__main__":
    main()
