"""Text to text: sentences, tokenizer, engine and back."""
