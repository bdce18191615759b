"""Code that runs inside the grading sandbox, in every Python from 3.5 on. Standard library only."""
