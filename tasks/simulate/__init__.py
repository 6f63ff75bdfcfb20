"""Small simulations that yield snapshots."""
