"""Jobs around the papers; run from the clone's root as `python -m scripts.<name>`, not installed."""
