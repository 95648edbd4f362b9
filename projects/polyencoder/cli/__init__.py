"""The `polyencoder` command: each of its commands is a module here, with one function that `main` adds to the app."""
