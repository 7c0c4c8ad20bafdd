"""An app whose ServerApp makes its model as many do: from generators that nobody seeded."""
