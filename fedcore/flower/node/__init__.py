"""What a node knows of itself: the keys that an app declares, and the config that a site gives it."""
