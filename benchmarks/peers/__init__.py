"""Other loaders beside mpload: each written as its documentation recommends, over the same photographs."""
