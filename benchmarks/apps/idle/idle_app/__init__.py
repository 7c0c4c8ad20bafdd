"""One optimizer step on a model of 793,098 parameters."""
