"""Single changes of an imported run, and the options that make them."""
