"""The `fedcore` command and its subcommands."""
