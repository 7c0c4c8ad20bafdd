"""The commands of a site's owner."""
