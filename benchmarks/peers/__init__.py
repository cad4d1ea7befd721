"""The contestants: mpload and other loaders over the same photographs, each set up as its documentation recommends."""
