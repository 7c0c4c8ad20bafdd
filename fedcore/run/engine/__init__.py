"""The leader of a run: what the server and the simulator share of it, whatever carries out the exchanges."""
