"""Replacements for the ELMo of other libraries, with their names and signatures."""
