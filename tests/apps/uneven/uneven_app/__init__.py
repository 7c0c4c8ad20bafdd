"""Sites of very different size, of which one may make a sudden step; every run of the app leaves a line in a file."""
