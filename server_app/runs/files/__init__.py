"""The files of a run: models, downloads, offers of apps."""
