"""Validation of requests, tokenization of prompts and compilation of grammars."""
