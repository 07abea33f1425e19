"""Export to Hugging Face transformers and to Argos Translate."""
