"""What users do, as they do it: the commands and the pages of the project, run as written."""
