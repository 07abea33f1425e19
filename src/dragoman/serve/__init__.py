"""HTTP server with the interface of LibreTranslate, and its page."""
