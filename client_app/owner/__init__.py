"""A client's status for its owner, from the records on disk: as text, a local page, or a document."""
