"""Keys of those whose tokens are taken: the controller reads them, and the router gets them."""
