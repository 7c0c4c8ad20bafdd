"""Confinement of user code: Landlock, seccomp, and the processes that get both."""
