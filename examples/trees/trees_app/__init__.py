"""A Flower app: boosted trees over the rows of all sites, grown from secure sums."""
