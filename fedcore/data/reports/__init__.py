"""What statistics of columns are shown as."""
