"""What makes two spools one: groups with numbers, what each of them touched, and which of them count."""
