"""What requests and answers look like: a wire reads a body into a `Call`, and its answer says how outputs go back."""
