"""An app of Flower and NumPy alone."""
