"""Which levels are within reach? A frontier computed before any network is trained."""
