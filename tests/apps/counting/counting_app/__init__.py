"""An app whose clients count their rounds in their Contexts."""
