"""Storage: the database of small facts, and the files that bodies and vectors are kept in."""
