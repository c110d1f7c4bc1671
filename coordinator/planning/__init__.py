"""Pure decisions: which worker runs which layers."""
