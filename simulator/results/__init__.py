"""What a replay yields: outcomes, measures, goodput, reports and comparisons."""
