"""A Flower app: Cox regression over the patients of six sites, standardised by the federation's statistics."""
