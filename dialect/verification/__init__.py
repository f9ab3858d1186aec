"""The forms of the IR, and the verifier, which checks operations, forms and relations."""
