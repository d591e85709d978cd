"""Tables of runs and of modules: settings and, apart from them, measurements."""
