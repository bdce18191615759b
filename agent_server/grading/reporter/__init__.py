"""The reporter: what the runners of a row's tests really did, recorded inside the grading sandbox and read outside."""
