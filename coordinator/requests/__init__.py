"""The types of a request and the rules that it must meet."""
