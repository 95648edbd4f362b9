"""The `polyencoder` command line: a module for each command, with one function that `main` registers."""
