"""Executors: who runs the apps of simulated clients, in this process, a pool or Ray."""
