"""An app that draws from generators that nobody seeded, and whose clients keep something between rounds."""
