"""ELMo in other libraries, one module for each. Import the module that you need: nothing is imported here."""
