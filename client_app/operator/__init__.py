"""The operator's commands: submit runs, follow them, download their results, manage the federation."""
