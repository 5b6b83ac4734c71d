"""Evaluations of the papers behind Forebay, reproduced: each a command that is run by hand."""
