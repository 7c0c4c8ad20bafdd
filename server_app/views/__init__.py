"""What operators and viewers see of runs and members."""
