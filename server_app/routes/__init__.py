"""The HTTP routes: thin functions between wire messages and the queue."""
