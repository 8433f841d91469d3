"""How commands look: output, tables, screens, questions, hints."""
