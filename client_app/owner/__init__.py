"""What the owner of a site can see of its agent, out of the records on disk: as lines, a local page, a document."""
