"""The app noop with the masks of Flower's SecAgg+ workflow around it."""
