"""Templates of first apps: `fedcore new` writes one into a folder, from the files in `files/`.

What is generated is small, and imports public names of fedcore alone, so that a person can read all of it.
"""
