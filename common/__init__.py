"""What two or more papers need: the run, its claims, data, metrics and backbones. Never imports a paper."""
