"""What must never be stored: secrets by their names and by their looks, and how texts are freed of them."""
