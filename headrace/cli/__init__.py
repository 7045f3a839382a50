"""The command line: one file a verb. Nothing heavy is imported before a command runs, so that help is instant."""
