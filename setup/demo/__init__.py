"""The functions behind the demo tasks, one table a split. `setup.demo.tasks` turns them into a repository and rows."""
