"""`python -m fedcore`: the same as the `fedcore` command."""

from fedcore.cli.main import main

main()
