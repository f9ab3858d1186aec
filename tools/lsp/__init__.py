"""The language server of `pw-lsp`."""
