"""Linear algebra of small matrices as functions of the program, in place of calls of a library."""
